// A link to a moment: read when it is opened, written while a moment is looked at.
import { feed, show, shownEngine } from "../feed/feed.js";
import { copyText } from "../parts/clipboard.js";
import { count } from "../parts/format.js";
import { makeStore } from "../parts/store.js";
import { AXES, tickAt } from "../plots/axis.js";
import { goLive, isLive, lookBack, pause, pick, view, windowOf } from "../plots/window.js";

const LONGEST_S = 30 * 86_400; // that a link can show
const RUN = 8; // characters of an incarnation's id that tell it from others

/** `target` is the moment of an opened link until it is shown; `problem` says why it cannot be. */
export const link = makeStore({ target: null, problem: null });

/** Return the target that a hash names, or null. */
export function parse(hash) {
  const [name, query] = hash.split("?");
  const params = new URLSearchParams(query);
  const read = (key, form) => (form.test(params.get(key) ?? "") ? Number(params.get(key)) : null);
  const whole = (key) => read(key, /^\d{1,12}$/);
  const seconds = (key) => read(key, /^-?\d{1,12}(\.\d{1,6})?$/);
  const [engine, tick] = [params.get("engine"), whole("tick")];
  if (name !== "#ticks" || (tick === null && engine === null)) return null;
  const [from, to] = [seconds("from"), seconds("to")]; // of the engine's clock
  const isPart = from !== null && to !== null && to > from;
  return {
    engine,
    run: params.get("run"),
    tick, // null: what happens now
    n: Math.min(Math.max(whole("n") ?? AXES.ticks.usual, AXES.ticks.least), 8192),
    end: whole("end"),
    from,
    to,
    axis: params.get("axis") === "time" && isPart ? "time" : "ticks",
    request: params.get("request"),
  };
}

/** Return the hash of what happens now, with the engine, where there are several. */
function liveHash() {
  return feed.get().engines.length > 1 ? `#ticks?${new URLSearchParams({ engine: shownEngine() })}` : "#ticks";
}

/** Return the hash of the moment that is looked at. */
export function hashOf(history) {
  const { axis, pinned, request } = view.get();
  const { axis: along, lo, hi, ticks } = windowOf(history);
  const { engine_id: engine, incarnation_id: run } = history.engine;
  const last = ticks.at(-1) ?? tickAt(history, along, hi, Infinity); // a window of time may have no tick in it
  if (!last) return liveHash();
  const tick = pinned ?? last.tick_id;
  const part =
    axis === "time" ? { from: lo.toFixed(6), to: hi.toFixed(6) } : { n: ticks.length, end: last.tick_id };
  const params = { engine, run: run.slice(0, RUN), tick, ...part, axis, ...(request && { request }) };
  return `#ticks?${new URLSearchParams(params)}`;
}

/** Take the link in the address bar; one without a moment is to what happens now. */
export function read() {
  const target = parse(location.hash);
  link.set({ target, problem: null });
  if (target ? target.tick !== null : location.hash !== "#ticks") return;
  goLive();
  write(feed.get().history);
}

/** Take the next step towards the target, as far as the feed allows. */
export async function obey() {
  const { target } = link.get();
  const { engines, history } = feed.get();
  if (!target || !engines.length) return;
  if (target.engine !== null && !engines.includes(target.engine)) {
    fail(`This server has no engine ${target.engine}.`);
  } else if (target.engine !== null && target.engine !== shownEngine()) show(target.engine);
  else if (target.tick === null) link.set({ target: null });
  else if (history?.ticks.length) await look(history, target);
}

async function look(history, target) {
  const { incarnation_id: run } = history.engine;
  const named = `Tick ${count(target.tick)}`;
  if (target.run && !run.startsWith(target.run)) {
    fail(`${named} is from an earlier run. The engine has been restarted since, and its ticks are lost.`);
    return;
  }
  if (!history.tick(target.tick) && target.tick < history.lastId) await lookBack(history);
  if (link.get().target !== target) return;
  if (history.tick(target.tick)) open(history, target);
  else if (target.tick > history.lastId)
    fail(`${named} has not happened yet. The newest is ${count(history.lastId)}.`);
  else fail(`${named} is too old. The engine remembers its ticks from ${count(history.firstId)} on.`);
}

/** Show a part of the clock, or `n` ticks up to `end`, or as many around `tick`. */
function open(history, { tick, n, end, from, to: until, axis: name, request }) {
  const to = end !== null && end >= tick && end < tick + n ? end : tick + (n >> 1);
  let [lo, hi] = [to - n + 0.5, to + 0.5];
  if (name === "time")
    [lo, hi] = [Math.max(Math.min(from, until - AXES.time.least), until - LONGEST_S), until];
  pause(history);
  view.set({ axis: name, end: hi, span: { ...view.get().span, [name]: hi - lo } });
  pick(history, tick);
  view.set({ request });
  link.set({ target: null, problem: null });
}

/** Show what happens now, and say why the target cannot be shown. */
function fail(problem) {
  goLive();
  link.set({ target: null, problem });
}

let writing = 0;

/** Keep the address bar at the moment looked at, or at the engine. Browsers dislike it many times a second. */
export function write(history) {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const { target, problem } = link.get();
    if (target || problem || !location.hash.startsWith("#ticks")) return;
    const hash = isLive() || !history?.ticks.length ? liveHash() : hashOf(history);
    if (hash !== location.hash) window.history.replaceState(null, "", hash);
  }, 300);
}

/** Copy the link to the moment looked at. Returns what to say of it. */
export async function copyLink(history) {
  pause(history);
  const hash = hashOf(history);
  window.history.replaceState(null, "", hash);
  return (await copyText(location.href)) ? "Link copied." : "The link is in the address bar.";
}
