// What a block of HTML or SVG looks like, in a frame that reaches neither network nor page. Loaded on demand.
import { BASE } from "../parts/api.js";
import { html, useRef } from "../parts/preact.js";

const SVG = /^\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--[^]*?-->\s*)*<svg[\s>]/;
const MIDDLE = "<!doctype html><style>body{margin:0;display:grid;place-items:center;min-height:100vh}</style>";

/** The frame. Its height is the reader's to choose. */
export function Preview({ text }) {
  const written = useRef(false); // writing the document loads the frame once more
  const write = ({ target }) => {
    if (written.current) return;
    written.current = true;
    target.contentWindow.postMessage(SVG.test(text) ? MIDDLE + text : text, "*");
  };
  return html`<iframe class="preview" title="Preview" sandbox="allow-scripts" onLoad=${write}
    src=${new URL("ui/answer/preview.html", BASE).href}></iframe>`;
}
