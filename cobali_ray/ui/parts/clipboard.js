// Copying text, also where the page is not trusted with the clipboard, and saving it.
import { Icon } from "./icons.js";
import { html, useEffect, useState } from "./preact.js";

const NOTICE_MS = 2000;

/** Copy a text; on plain HTTP from another machine through a selection. Says whether that worked. */
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
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus({ preventScroll: true });
  return copied;
}

export function saveText(text, name) {
  const type = { json: "application/json", html: "text/html" }[name.split(".").at(-1)] ?? "text/plain";
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A button that copies what `textOf` returns and says so for a moment. */
export function CopyButton({ textOf, what }) {
  const [notice, setNotice] = useState(null);
  useEffect(() => {
    if (notice === null) return undefined;
    const timer = setTimeout(() => setNotice(null), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [notice]);
  const copy = async () => setNotice((await copyText(textOf())) ? "Copied" : "Not copied");
  return html`<button type="button" class="quiet small" aria-label=${notice ?? what} onClick=${copy}>
    <${Icon} name=${notice === "Copied" ? "check" : "copy"} size=${14} />${notice ?? "Copy"}</button>`;
}
