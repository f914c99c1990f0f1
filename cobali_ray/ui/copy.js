// A dialog with the current request as curl and as Python.
import { BASE, access } from "./api.js";
import { currentBody } from "./play.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { asCurl, asPython } from "./snippets.js";
import { makeStore, useStore } from "./store.js";

const shown = makeStore({ body: null, kind: "curl" });
const KINDS = { curl: ["curl", asCurl], python: ["Python", asPython] };

/** Show the dialog for what is written now, or was sent last. */
export const copyRequest = () => shown.set({ body: currentBody() });

/** The dialog; closed while nothing is to be copied. */
export function CopyDialog() {
  const { body, kind } = useStore(shown);
  const [copied, setCopied] = useState(false);
  const dialog = useRef(null);
  const code = useRef(null);
  useEffect(() => {
    setCopied(false);
    if (body && !dialog.current.open) dialog.current.showModal();
  }, [body, kind]);
  const text = body ? KINDS[kind][1](BASE, body, Boolean(access.get().key)) : "";
  const hint = access.get().key ? "The key is read from COBALI_KEY." : "";
  const copy = async () => {
    setCopied(await copyText(text, code.current));
  };
  return html`<dialog ref=${dialog} class="copy" aria-labelledby="copy-title"
      onClose=${() => shown.set({ body: null })}>
    <div class="modes">
      <h2 id="copy-title" class="grow">This request as</h2>
      ${Object.entries(KINDS).map(
        ([name, [word]]) => html`<button key=${name} class="segment" aria-pressed=${String(name === kind)}
        onClick=${() => shown.set({ kind: name })}>${word}</button>`,
      )}
    </div>
    <pre ref=${code} tabindex="0" aria-label="Code"><code>${text}</code></pre>
    <div class="modes">
      <p class="hint grow" role="status">${copied ? "Copied." : hint}</p>
      <button class="quiet" onClick=${() => dialog.current.close()}>Close</button>
      <button class="primary" onClick=${copy}>Copy</button>
    </div>
  </dialog>`;
}

/** Copy, also where the page is not trusted with the clipboard: plain HTTP from another machine. */
async function copyText(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}
