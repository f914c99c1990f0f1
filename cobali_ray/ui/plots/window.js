// Which part of the axis is shown, which tick is read, which request is followed.
import { REMEMBERED, feed, fetchOlder } from "../feed/feed.js";
import { forGood, keep, kept, makeStore } from "../parts/store.js";
import { AXES, reachOf, ticksBetween } from "./axis.js";

const usual = () => ({ ticks: innerWidth < 640 ? 60 : AXES.ticks.usual, time: AXES.time.usual });

/**
 * `span`: how much of each axis is shown; `end`: where the window ends, null while live; `held`: the same while a
 * pointer rests on the plots.
 */
export const view = makeStore({
  axis: kept(forGood, "axis", "ticks") in AXES ? kept(forGood, "axis", "ticks") : "ticks",
  span: { ...usual(), ...kept(forGood, "span", {}) },
  end: null,
  held: null,
  hovered: null,
  pinned: null,
  request: null,
  lane: null,
});

/** What of this view the history must not forget. */
function keptOf(history, state) {
  const { pinned, request } = state;
  if (state.end === null && state.held === null) return { from: Infinity, to: Infinity, pinned, request };
  const ticks = windowOf(history, state).ticks;
  return { from: ticks[0]?.tick_id ?? Infinity, to: ticks.at(-1)?.tick_id ?? Infinity, pinned, request };
}

const remember = () => {
  const { history } = feed.get();
  if (history?.ticks.length) history.keep(keptOf(history, view.get()));
};
view.watch(remember);
feed.watch(remember); // what was fetched may belong to the window

export const isLive = () => view.get().end === null;

/** Return `{axis, lo, hi, ticks}`: the axis, the part of it that is shown, and the ticks in it. */
export function windowOf(history, state = view.get()) {
  const axis = AXES[state.axis];
  const span = state.span[state.axis];
  const hi = state.end ?? state.held ?? newest(history, axis, span);
  return { axis, lo: hi - span, hi, ticks: ticksBetween(history, axis, hi - span, hi) };
}

/** Where the window ends that shows the newest tick; the first ticks of all fill it from the left. */
function newest(history, axis, span) {
  const { lo, hi } = reachOf(history, axis);
  return history.firstId === 0 ? Math.max(hi, lo + span) : hi;
}

/** Return the tick whose record is shown: pointed at, pinned, or the newest; null for a pinned one that is lost. */
export function shownOf(history, { hovered, pinned }) {
  const pointed = hovered === null ? null : history.tick(hovered);
  return pointed ?? (pinned === null ? (history.ticks.at(-1) ?? null) : history.tick(pinned));
}

let fetchedFor = null; // what was lacking when older ticks were last fetched

/** Fetch the older ticks that the engine still has, once for the same lack. */
export async function lookBack(history) {
  const lacking = `${history.engine.incarnation_id} ${history.nGaps}`;
  if (fetchedFor === lacking || !history.lacks(REMEMBERED)) return;
  fetchedFor = lacking;
  await fetchOlder().catch(() => (fetchedFor = null));
}

/** Stop following, and fetch the past: once per pause, and again after a gap. */
export function pause(history) {
  if (isLive()) {
    view.set({ end: windowOf(history).hi });
    fetchedFor = null;
  }
  lookBack(history);
}

export const goLive = () => view.set({ end: null, held: null, pinned: null, hovered: null, lane: null });

/** Show the window that ends at a place of the axis. */
export function pan(history, end) {
  pause(history);
  const { axis, lo, hi } = windowOf(history);
  const last = newest(history, axis, hi - lo);
  view.set({ end: Math.max(Math.min(end, last), Math.min(reachOf(history, axis).lo + hi - lo, last)) });
}

/** Show `factor` times as much, with the place `at` where it is; live, the newest tick is. */
export function zoom(history, factor, at = null) {
  const { axis, lo, hi } = windowOf(history);
  const { end, held, span } = view.get();
  const reach = reachOf(history, axis);
  const most = Math.max(reach.hi - reach.lo, usual()[axis.name]);
  const size = (hi - lo) * factor;
  if (size > reach.hi - reach.lo) lookBack(history);
  const next = Math.max(axis.least, Math.min(size, most));
  setSpan({ ...span, [axis.name]: next });
  const stays = at ?? (lo + hi) / 2;
  const moved = stays + ((hi - stays) * next) / (hi - lo);
  if (end !== null) pan(history, moved);
  else if (held !== null) view.set({ held: Math.min(moved, newest(history, axis, next)) });
}

export function showPart(history, lo, hi) {
  const { axis } = windowOf(history);
  pause(history);
  setSpan({ ...view.get().span, [axis.name]: Math.max(hi - lo, axis.least) });
  pan(history, Math.max(hi, lo + axis.least));
}

/** Show all that is known, and what the engine still remembers. */
export async function showAll(history) {
  await lookBack(history);
  const { lo, hi } = reachOf(history, windowOf(history).axis);
  showPart(history, lo, hi);
}

/** Show a time of the engine, such as a request's life, on whatever axis. */
export function showTime(history, fromS, untilS) {
  const ticks = ticksBetween(history, AXES.time, fromS, untilS);
  if (!ticks.length) return false;
  const { axis } = windowOf(history);
  const [lo, hi] = [axis.leftOf(ticks[0]), axis.rightOf(ticks.at(-1))];
  showPart(history, lo - (hi - lo) * 0.03, hi + (hi - lo) * 0.03);
  return true;
}

/** Take the other axis. A paused window keeps its ticks. */
export function turn(history, name) {
  const { ticks } = windowOf(history);
  const { end, span } = view.get();
  keep(forGood, "axis", name);
  if (end === null || !ticks.length) {
    view.set({ axis: name, end: null, held: null });
    return;
  }
  const axis = AXES[name];
  const [lo, hi] = [axis.leftOf(ticks[0]), axis.rightOf(ticks.at(-1))];
  view.set({ axis: name, end: hi, held: null, span: { ...span, [name]: Math.max(hi - lo, axis.least) } });
}

function setSpan(span) {
  keep(forGood, "span", span);
  view.set({ span });
}

/** Let the window stand still while somebody points at it. */
export function hold(history, holds) {
  if (!holds) view.set({ held: null });
  else if (view.get().held === null) view.set({ held: windowOf(history).hi });
}

/** Show the record of the tick under the pointer. */
export const look = (id) => view.get().hovered !== id && view.set({ hovered: id });

/** Pin a tick, and follow the request in a slot, if one was meant. */
export function pick(history, id, slot = null) {
  pause(history);
  const request = slot === null ? null : history.holder(slot, history.tick(id));
  view.set({ pinned: id, lane: slot, ...(slot !== null && { request: request?.request_id ?? null }) });
}

/** Pin a tick and bring it into the window. */
export function goTo(history, id) {
  pause(history);
  view.set({ pinned: id });
  const { axis, lo, hi } = windowOf(history);
  const tick = history.tick(id);
  if (axis.leftOf(tick) < lo) pan(history, axis.leftOf(tick) + hi - lo);
  else if (axis.rightOf(tick) > hi) pan(history, axis.rightOf(tick));
}

export const follow = (requestId) => view.set({ request: requestId });
