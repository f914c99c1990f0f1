// Keeping the end of what grows in sight.
import { useLayoutEffect } from "./preact.js";

/** Scroll to the end of what grew, if its reader was within `nearPx` of it before. `find` returns what scrolls. */
export function useEndInSight(find, nearPx, grows) {
  const before = sizeOf(find()); // while drawing: the new text is not there yet
  useLayoutEffect(() => {
    const element = find();
    if (grows && before.left <= nearPx && element && sizeOf(element).high > before.high)
      element.scrollTop = element.scrollHeight;
  });
}

function sizeOf(element) {
  if (!element) return { high: 0, left: 0 };
  const { scrollHeight, scrollTop, clientHeight } = element;
  return { high: scrollHeight, left: scrollHeight - scrollTop - clientHeight };
}
