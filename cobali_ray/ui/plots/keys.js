// What the keys do on the plots.
import { goLive, goTo, isLive, pause, pick, shownOf, showAll, view, windowOf, zoom } from "./window.js";

const STEP = 1.5;

export const zoomIn = (history, at) => zoom(history, 1 / STEP, at);
export const zoomOut = (history, at) => zoom(history, STEP, at);

/** Obey a key of the tick slider. Returns whether it was one. */
export function obey(history, key, far) {
  const { lane, pinned } = view.get();
  const { ticks } = windowOf(history);
  const at = pinned ?? ticks.at(-1)?.tick_id ?? history.lastId;
  const step = far ? 10 : 1;
  const to = {
    ArrowLeft: at - step,
    ArrowRight: at + step,
    PageUp: at - (ticks.length >> 1),
    PageDown: at + (ticks.length >> 1),
    Home: history.firstId,
    End: history.lastId,
  }[key];
  const down = key === "ArrowDown";
  if (to !== undefined) choose(history, to, to < at);
  else if (key === " ") isLive() ? pause(history) : goLive();
  else if (key === "+" || key === "=") zoomIn(history, placeOf(history));
  else if (key === "-") zoomOut(history, placeOf(history));
  else if (key === "0") showAll(history);
  else if (key === "ArrowUp" || down) {
    const next = (lane ?? (down ? -1 : history.engine.n_slots)) + (down ? 1 : -1);
    view.set({ lane: Math.max(0, Math.min(history.engine.n_slots - 1, next)) });
  } else if (key === "Enter" && lane !== null) {
    const shown = shownOf(history, view.get());
    if (shown) pick(history, shown.tick_id, lane);
  } else return false;
  return true;
}

/** Where the pinned tick is, if it is in the window: zooming keeps it in place. */
export function placeOf(history) {
  const { axis, lo, hi } = windowOf(history);
  const tick = history.tick(view.get().pinned ?? -1);
  if (!tick || axis.rightOf(tick) < lo || axis.leftOf(tick) > hi) return null;
  return (axis.leftOf(tick) + axis.rightOf(tick)) / 2;
}

/** Pin a tick; where it is missing, the next one before or after it. */
function choose(history, id, before) {
  const target = Math.max(history.firstId, Math.min(history.lastId, id));
  const i = history.indexOf(before ? target + 1 : target);
  goTo(history, (history.ticks[before ? i - 1 : i] ?? history.ticks.at(-1)).tick_id);
}
