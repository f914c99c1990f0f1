// A dialog with the current request, or several, as curl and as Python.
import { BASE, access } from "../parts/api.js";
import { copyText } from "../parts/clipboard.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { makeStore, useStore } from "../parts/store.js";
import { asCurl, asPython } from "./snippets.js";

const KINDS = { curl: ["curl", asCurl], python: ["Python", asPython] };

const chosen = makeStore({ kind: "curl" });

/** The dialog about a request, or about those of a list. */
export function CopyDialog({ body, onClose }) {
  const { kind } = useStore(chosen);
  const [copied, setCopied] = useState(false);
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const choose = (name) => {
    chosen.set({ kind: name });
    setCopied(false);
  };
  const write = (request) => KINDS[kind][1](BASE, request, Boolean(access.get().key));
  const text = [body].flat().map(write).join("\n");
  const hint = access.get().key ? "The key is read from COBALI_KEY." : "";
  const copy = async () => {
    setCopied(await copyText(text));
  };
  return html`<dialog ref=${dialog} class="copy" aria-labelledby="copy-title" onClose=${onClose}>
    <div class="modes">
      <h2 id="copy-title" class="grow">This request as</h2>
      ${Object.entries(KINDS).map(
        ([name, [word]]) => html`<button key=${name} class="segment" aria-pressed=${String(name === kind)}
        onClick=${() => choose(name)}>${word}</button>`,
      )}
    </div>
    <pre tabindex="0" aria-label="Code"><code>${text}</code></pre>
    <div class="modes">
      <p class="hint grow" role="status">${copied ? "Copied." : hint}</p>
      <button class="quiet" onClick=${() => dialog.current.close()}>Close</button>
      <button class="primary" onClick=${copy}>Copy</button>
    </div>
  </dialog>`;
}
