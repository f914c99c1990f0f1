// Copying text, also where the page is not trusted with the clipboard, and saving it.
import { Icon } from "./icons.js";
import { html, useEffect, useState } from "./preact.js";

const TOLD_MS = 2000;

/** Copy a text; on plain HTTP from another machine through a selection. Says whether it went. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden";
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  const before = document.activeElement;
  field.select();
  const went = document.execCommand("copy");
  field.remove();
  before?.focus({ preventScroll: true });
  return went;
}

/** Save a text as a file. */
export function saveText(text, name) {
  const type = { json: "application/json", html: "text/html" }[name.split(".").at(-1)] ?? "text/plain";
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A button that copies what `textOf` returns and says so for a moment. */
export function CopyButton({ textOf, what }) {
  const [told, setTold] = useState(null);
  useEffect(() => {
    if (told === null) return undefined;
    const timer = setTimeout(() => setTold(null), TOLD_MS);
    return () => clearTimeout(timer);
  }, [told]);
  const copy = async () => setTold((await copyText(textOf())) ? "Copied" : "Not copied");
  return html`<button type="button" class="quiet small" aria-label=${told ?? what} onClick=${copy}>
    <${Icon} name=${told === "Copied" ? "check" : "copy"} size=${14} />${told ?? "Copy"}</button>`;
}
