// A formula in LaTeX: drawn once KaTeX is loaded; until then, or where it is not valid, as it was written.
import { onDemand, script, style } from "../parts/lazy.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/preact.js";

const WRITTEN = /^(?:\$\$([^]+)\$\$|\$([^]+)\$|\\\(([^]+)\\\)|\\\[([^]+)\\\])$/;
const LIMITS = { trust: false, strict: "ignore", errorColor: "inherit", maxSize: 20, maxExpand: 200 };
const MOST_CHARS = 5000; // longer ones stay as they are

export const drawer = onDemand(async () => {
  await Promise.all([script("ui/vendor/katex-0.19.1.js"), style("ui/vendor/katex-0.19.1.css")]);
  return globalThis.katex;
});

/** `text` with its delimiters; a `block` has lines of its own. KaTeX makes elements, never HTML. */
export function Formula({ text, block = false, caret = null }) {
  const place = useRef(null);
  const [wrong, setWrong] = useState(null); // the text that is no formula
  const tex = text.length <= MOST_CHARS ? WRITTEN.exec(text)?.slice(1).find(Boolean) : undefined;
  const { loaded: katex } = drawer.use(Boolean(tex));
  const drawn = Boolean(katex && tex) && wrong !== text;
  useLayoutEffect(() => {
    if (!drawn) return;
    try {
      katex.render(tex, place.current, { ...LIMITS, displayMode: block || text.startsWith("$$") });
    } catch {
      setWrong(text);
    }
  }, [drawn, text]);
  const inside = drawn
    ? html`<span key="drawn" ref=${place} class="formula" />`
    : html`<span key="source" class="math">${text}</span>`;
  return block
    ? html`<p class=${drawn ? "formula-block" : "math"} tabindex="0">${inside}${caret}</p>`
    : html`${inside}${caret}`;
}
