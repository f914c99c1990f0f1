// The text of an answer, drawn as markdown once its parser is loaded; plain until then.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../parts/preact.js";
import { makeStore, useStore } from "../parts/store.js";

const LEAST_REST_MS = 40; // 25 drawings a second look like a stream
const REST_PER_WORK = 8; // where a drawing takes long
const MOST_CHARS = 400_000; // longer ones stay plain

const reader = makeStore({ makeBlocks: null });
let requested = false;

/** Load the parser, once. If that fails, text stays plain and the next answer tries again. */
async function needMarkdown() {
  if (requested) return;
  requested = true;
  try {
    reader.set(await import("./blocks.js"));
  } catch {
    requested = false;
  }
}

/** A text and the caret behind it. While it is `growing`, finished blocks keep their elements. */
export function Markdown({ text, growing, caret = null }) {
  const { makeBlocks } = useStore(reader);
  const blocks = useMemo(() => makeBlocks?.(), [makeBlocks]);
  const drawn = useRef(null);
  const [, redraw] = useState(0);
  const was = drawn.current;
  const restMs = was ? was.againMs - performance.now() : 0;
  const late = growing && restMs > 0;
  useEffect(() => {
    if (!late) return undefined;
    const timer = setTimeout(() => redraw((n) => n + 1), restMs);
    return () => clearTimeout(timer);
  });
  useEffect(() => void needMarkdown(), []);
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
