// A block of code: its language, a button that copies it, and colours once the highlighter is loaded.
import { CopyButton } from "../parts/clipboard.js";
import { Icon } from "../parts/icons.js";
import { later, onDemand } from "../parts/lazy.js";
import { html, useRef, useState } from "../parts/preact.js";

const REST_PER_WORK = 12;
const LEAST_REST_MS = 150;
const MOST_CHARS = 60_000; // more of it stays plain

const Preview = later(async () => (await import("./preview.js")).Preview);
/** Whether a block can be previewed as the drawing that it describes. */
const isDrawing = (lang, text) =>
  /^(?:html|svg|mermaid)$/i.test(lang) || (/^xml$/i.test(lang) && text.includes("<svg"));

const highlighter = onDemand(() => import("./highlight.js"));

/** While it is `growing`, its newest lines may be without colours for a moment. */
export function Code({ lang, text, growing, caret }) {
  const { highlight } = highlighter.use(Boolean(lang)).loaded ?? {};
  const drawn = useRef(null);
  const [previewing, setPreviewing] = useState(false);
  const colours = lang && highlight && text.length <= MOST_CHARS;
  if (colours) drawn.current = coloured(drawn.current, highlight, lang, text, growing);
  const { nodes, upTo } = colours ? drawn.current : { nodes: null, upTo: 0 };
  return html`<figure class="code">
    <figcaption><span class="grow">${lang || "code"}</span>
      ${
        !growing &&
        isDrawing(lang, text) &&
        html`<button type="button" class="quiet small" aria-pressed=${String(previewing)}
          onClick=${() => setPreviewing(!previewing)}><${Icon} name="play" size=${14} />Preview</button>`
      }
      <${CopyButton} textOf=${() => text} what="Copy code" /></figcaption>
    ${previewing && html`<${Preview} key=${text} lang=${lang} text=${text} />`}
    <pre tabindex="0"><code>${nodes}${text.slice(upTo)}${caret}</code></pre>
  </figure>`;
}

/** What is coloured: all of a finished text; of a growing one its whole lines, now and then. */
function coloured(was, highlight, lang, text, growing) {
  const same = was?.lang === lang && was.highlight === highlight && text.startsWith(was.text);
  const upTo = growing ? text.lastIndexOf("\n") + 1 : text.length;
  const now = performance.now();
  if (same && (was.upTo === upTo || (growing && now < was.againMs))) return was;
  const part = text.slice(0, upTo);
  const nodes = highlight(part, lang);
  const doneMs = performance.now();
  const againMs = doneMs + Math.max(LEAST_REST_MS, (doneMs - now) * REST_PER_WORK);
  return { lang, highlight, text: part, upTo, nodes, againMs };
}
