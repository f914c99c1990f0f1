// Keeping the end of what grows in sight.
import { useLayoutEffect, useRef } from "./preact.js";

/**
 * Scroll to the end of what grew, unless its reader has gone up by more than `nearPx`. `find` returns what scrolls.
 *
 * Whatever grows between two drawings, such as a block whose library comes late, moves nobody away from the end,
 * also where something else became smaller just before: a browser then goes up by that, as a reader would.
 */
export function useEndInSight(find, nearPx, grows) {
  const before = sizeOf(find()); // while drawing: the new text is not there yet
  const seen = useRef({ element: null });
  useLayoutEffect(() => {
    const element = find();
    if (!element) return;
    const { element: lastElement, top, high, follows: followed } = seen.current;
    const near = before.left <= nearPx;
    const isOther = lastElement !== element || element.scrollTop < top - nearPx;
    const follows = isOther ? near : followed || near;
    const size = sizeOf(element);
    if (grows && follows && size.high > (lastElement === element ? high : before.high)) element.scrollTop = size.high;
    const highest = follows && !isOther ? Math.max(top, element.scrollTop) : element.scrollTop;
    seen.current = { element, top: highest, high: size.high, follows };
  });
}

function sizeOf(element) {
  if (!element) return { high: 0, left: 0 };
  const { scrollHeight, scrollTop, clientHeight } = element;
  return { high: scrollHeight, left: scrollHeight - scrollTop - clientHeight };
}
