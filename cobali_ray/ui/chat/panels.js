// What stands beside the conversation and can be folded; where there is no room, a drawer above it.
import { focusLater } from "../parts/focus.js";
import { html, useLayoutEffect, useRef } from "../parts/preact.js";
import { forGood, keep, kept, makeStore, useStore } from "../parts/store.js";

const NARROW = "(max-width: 900px)";
const NAME = "panels";

const narrow = () => matchMedia(NARROW).matches;
const atFirst = () =>
  narrow()
    ? { list: false, settings: false }
    : { list: true, settings: false, ...kept(forGood, NAME, {}) };

/** Which of them are shown. */
export const panels = makeStore(atFirst());
matchMedia(NARROW).addEventListener("change", () => panels.set(atFirst()));

/** Show or fold one; `focus` is the id of what takes the focus then. */
export function toggle(name, shown = !panels.get()[name], focus = null) {
  const { list, settings } = {
    ...panels.get(),
    ...(narrow() && { list: false, settings: false }),
    [name]: shown,
  };
  panels.set({ list, settings });
  if (!narrow()) keep(forGood, NAME, { list, settings });
  const place = () => document.getElementById(focus);
  if (place()) place().focus();
  else if (focus) focusLater(place);
}

/** Say whether one of them hides the conversation. */
export const isCovered = () => narrow() && Object.values(panels.get()).includes(true);

/** Fold what hides the conversation; say whether anything did. */
export function closeDrawers() {
  if (!isCovered()) return false;
  panels.set({ list: false, settings: false });
  return true;
}

/** One of them, while it is shown. */
export function Panel({ name, label, children }) {
  const shown = useStore(panels)[name];
  const panel = useRef(null);
  useLayoutEffect(() => {
    if (!shown || !narrow()) return undefined;
    const before = document.activeElement;
    panel.current.focus();
    return () => before?.focus({ preventScroll: true });
  }, [shown]);
  if (!shown) return null;
  return html`<div class="panel-back" onClick=${closeDrawers}></div>
    <div ref=${panel} class=${`panel panel-${name}`} tabindex="-1" role="region" aria-label=${label}>
      ${children}</div>`;
}
