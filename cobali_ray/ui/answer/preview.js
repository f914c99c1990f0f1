// What a block of HTML, SVG or Mermaid looks like, in a frame that reaches nothing else. Loaded on demand.
import { BASE } from "../parts/api.js";
import { html, useRef } from "../parts/preact.js";

const SVG = /^\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--[^]*?-->\s*)*<svg[\s>]/;
const MIDDLE =
  "<!doctype html><style>body{margin:0;display:grid;place-items:center;min-height:100vh}" +
  "svg{max-height:100vh}</style>";
const MERMAID = "ui/vendor/mermaid-tiny-11.17.2.js";

/** What draws a diagram, inside the frame. */
const DRAW = `
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true });
  mermaid.render("drawing", TEXT).then(
    ({ svg }) => (document.body.innerHTML = svg),
    ({ message }) => (document.body.innerText = "Mermaid cannot draw this diagram.\\n" + message),
  );`;

const inScript = (code) => `<script>${code}</script>`;

async function diagramOf(text) {
  const answer = await fetch(new URL(MERMAID, BASE));
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  const written = JSON.stringify(text).replaceAll("<", "\\u003c"); // it ends no script
  return `${MIDDLE}<body>${inScript(await answer.text())}${inScript(DRAW.replace("TEXT", () => written))}`;
}

async function documentOf(lang, text) {
  if (!/^mermaid$/i.test(lang)) return SVG.test(text) ? MIDDLE + text : text;
  return diagramOf(text).catch(() => `${MIDDLE}<body>The library that draws diagrams could not be loaded.`);
}

/** The frame. Its height is the reader's to choose. */
export function Preview({ lang, text }) {
  const written = useRef(false); // writing the document loads the frame once more
  const write = async ({ target }) => {
    if (written.current) return;
    written.current = true;
    target.contentWindow.postMessage(await documentOf(lang, text), "*");
  };
  return html`<iframe class="preview" title="Preview" sandbox="allow-scripts" onLoad=${write}
    src=${new URL("ui/answer/preview.html", BASE).href}></iframe>`;
}
