// Attached files: a chip each, with name and size.
import { bytes, some } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { html } from "../parts/preact.js";

/** The files of a message; with `onRemove` each can be taken away. */
export function Chips({ files = [], images = [], onRemove = null }) {
  const all = [...files, ...images];
  if (!all.length) return null;
  return html`<ul class="chips" aria-label="Attached files">${all.map(
    (file, i) => html`<li key=${i} class="chip"><${Icon} name="paperclip" size=${14} />
      <b>${file.name}</b> <span class="muted">${sizeOf(file)}</span>
      ${
        onRemove &&
        html`<button type="button" class="quiet icon" aria-label=${`Remove ${file.name}`}
        onClick=${() => onRemove(file)}><${Icon} name="close" size=${12} /></button>`
      }</li>`,
  )}</ul>`;
}

const sizeOf = ({ size, nTokens = null }) =>
  nTokens === null ? bytes(size) : `${bytes(size)}, ${some(nTokens, "token")}`;
