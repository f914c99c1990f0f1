// Which ticks are shown, which one is read, which request is followed.
import { REMEMBERED, feed, fetchOlder } from "./feed.js";
import { forGood, keep, kept, makeStore } from "./store.js";

export const SIZES = [60, 120, 240, 480, 960];

/** `end`: the last tick shown, null while live; `held`: the same while a pointer rests on the plots. */
export const view = makeStore({
  size: kept(forGood, "window", innerWidth < 640 ? 60 : 120),
  end: null,
  held: null,
  hovered: null,
  pinned: null,
  request: null,
  lane: null,
});

/** What of that the history must not forget. */
function keptOf({ size, end, held, pinned, request }) {
  const to = end ?? held ?? Infinity;
  return { from: to - size + 1, to, pinned, request };
}

view.watch(() => feed.get().history?.keep(keptOf(view.get())));

export const isLive = () => view.get().end === null;

/** Return the first and the last tick id of the window. */
export function windowOf(history, { size, end, held }) {
  const to = end ?? held ?? Math.max(history.lastId, size - 1);
  return { from: to - size + 1, to };
}

/** Return the tick whose record is shown: pointed at, pinned, or the newest; null for a pinned one that is gone. */
export function shownOf(history, { hovered, pinned }) {
  const pointed = hovered === null ? null : history.tick(hovered);
  return pointed ?? (pinned === null ? (history.ticks.at(-1) ?? null) : history.tick(pinned));
}

let asked = null; // what was lacking when it was asked for

/** Stop following, and fetch what the engine still knows of the past: once per pause, and again after a gap. */
export function pause(history) {
  if (isLive()) {
    view.set({ end: view.get().held ?? Math.max(history.lastId, view.get().size - 1) });
    asked = null;
  }
  const lacking = `${history.engine.incarnation_id} ${history.nGaps}`;
  if (asked === lacking) return;
  asked = lacking;
  if (history.lacks(REMEMBERED)) fetchOlder().catch(() => (asked = null));
}

/** Follow the newest ticks again. */
export const goLive = () => view.set({ end: null, held: null, pinned: null, hovered: null, lane: null });

/** Show the window that ends at a tick. */
export function pan(history, end) {
  pause(history);
  const { size } = view.get();
  const last = Math.max(history.lastId, size - 1);
  view.set({ end: Math.max(Math.min(end, last), Math.min(history.firstId + size - 1, last)) });
}

/** Show more or fewer ticks. */
export function resize(size) {
  keep(forGood, "window", size);
  view.set({ size });
}

/** Let the window stand still while somebody points at it. */
export function hold(history, holds) {
  const { held, size } = view.get();
  if (!holds) view.set({ held: null });
  else if (held === null) view.set({ held: Math.max(history.lastId, size - 1) });
}

/** Show the record of the tick under the pointer. */
export const look = (id) => view.get().hovered !== id && view.set({ hovered: id });

/** Pin a tick, and follow the request in a slot, if one was meant. */
export function pick(history, id, slot = null) {
  pause(history);
  const request = slot === null ? null : history.holder(slot, history.tick(id));
  view.set({ pinned: id, lane: slot, ...(slot !== null && { request: request?.request_id ?? null }) });
}

/** Follow a request from the list. */
export const follow = (requestId) => view.set({ request: requestId });

/** Obey a key of the tick slider. Returns whether it was one. */
export function move(history, key, far) {
  const { size, lane, pinned } = view.get();
  const at = pinned ?? windowOf(history, view.get()).to;
  const step = far ? 10 : 1;
  const to = {
    ArrowLeft: at - step,
    ArrowRight: at + step,
    PageUp: at - (size >> 1),
    PageDown: at + (size >> 1),
    Home: history.firstId,
    End: history.lastId,
  }[key];
  if (to !== undefined) choose(history, to, to < at);
  else if (key === " ") isLive() ? pause(history) : goLive();
  else if (key === "ArrowUp" || key === "ArrowDown") {
    const next =
      (lane ?? (key === "ArrowDown" ? -1 : history.engine.n_slots)) + (key === "ArrowDown" ? 1 : -1);
    view.set({ lane: Math.max(0, Math.min(history.engine.n_slots - 1, next)) });
  } else if (key === "Enter" && lane !== null) {
    const shown = shownOf(history, view.get());
    if (shown) pick(history, shown.tick_id, lane);
  } else return false;
  return true;
}

/** Pin a tick; where it is missing, the next one before or after it. */
function choose(history, id, before) {
  const wanted = Math.max(history.firstId, Math.min(history.lastId, id));
  const i = history.indexOf(before ? wanted + 1 : wanted);
  const pinned = (history.ticks[before ? i - 1 : i] ?? history.ticks.at(-1)).tick_id;
  pause(history);
  const { from, to } = windowOf(history, view.get());
  view.set({ pinned });
  if (pinned < from) pan(history, pinned + view.get().size - 1);
  if (pinned > to) pan(history, pinned);
}
