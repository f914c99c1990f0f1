// Canvases that are sharp on every screen.
import { useLayoutEffect, useState } from "../parts/preact.js";
import { soon } from "../parts/store.js";

/** Give a canvas a size in CSS pixels; return its context, which counts in them and is empty. */
export function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  return ctx;
}

/** Return the width of an element, now and after it changed; 0 before it is there. */
export function useWidth(element) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => soon(() => setWidth(Math.round(entry.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return width;
}
