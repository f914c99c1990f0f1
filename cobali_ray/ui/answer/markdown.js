// The text of an answer, drawn as markdown once its parser is loaded; plain until then.
import { onDemand } from "../parts/lazy.js";
import { html, useLayoutEffect, useMemo, useRef } from "../parts/preact.js";
import { useRedraw } from "../parts/store.js";

const LEAST_REST_MS = 40; // 25 drawings a second look like a stream
const REST_PER_WORK = 8; // where a drawing takes long
const MOST_CHARS = 400_000; // longer ones stay plain

const parser = onDemand(() => import("./blocks.js"));

/** A text and the caret behind it. While it is `growing`, finished blocks keep their elements. */
export function Markdown({ text, growing, caret = null }) {
  const { loaded } = parser.use();
  const blocks = useMemo(() => loaded?.makeBlocks(), [loaded]);
  const drawn = useRef(null);
  const was = drawn.current;
  const restMs = was ? was.againMs - performance.now() : 0;
  const late = growing && restMs > 0;
  useRedraw(late ? restMs : null);
  useLayoutEffect(() => {
    const now = drawn.current;
    if (now?.againMs !== Infinity) return;
    const doneMs = performance.now();
    now.againMs = doneMs + Math.max(LEAST_REST_MS, (doneMs - now.startedMs) * REST_PER_WORK);
  });
  if (!blocks || text.length > MOST_CHARS) return html`<div class="plain">${text}${caret}</div>`;
  if (!late && !(was?.text === text && was.growing === growing && Boolean(was.caret) === Boolean(caret))) {
    const startedMs = performance.now();
    drawn.current = {
      text,
      growing,
      caret,
      nodes: blocks(text, growing, caret),
      startedMs,
      againMs: Infinity,
    };
  }
  return html`<div class="markdown">${drawn.current.nodes}</div>`;
}
