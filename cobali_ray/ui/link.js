// A link to a moment: read when it is opened, written while one looks at a moment.
import { AXES, tickAt } from "./axis.js";
import { feed, show } from "./feed.js";
import { count } from "./format.js";
import { makeStore } from "./store.js";
import { goLive, isLive, lookBack, pause, pick, view, windowOf } from "./window.js";

const LONGEST_S = 30 * 86_400; // that a link can show
const RUN = 8; // characters of an incarnation's id that tell it from others

/** `asked` is what an opened link wants and has not got yet; `problem` says why it cannot. */
export const link = makeStore({ asked: null, problem: null });

/** Return what a hash asks for, or null. */
export function parse(hash) {
  const [name, query] = hash.split("?");
  const params = new URLSearchParams(query);
  const read = (key, form) => (form.test(params.get(key) ?? "") ? Number(params.get(key)) : null);
  const whole = (key) => read(key, /^\d{1,12}$/);
  const seconds = (key) => read(key, /^-?\d{1,12}(\.\d{1,6})?$/);
  if (name !== "#ticks" || whole("tick") === null) return null;
  return {
    engine: params.get("engine"),
    run: params.get("run"),
    tick: whole("tick"),
    n: Math.min(Math.max(whole("n") ?? AXES.ticks.usual, AXES.ticks.least), 8192),
    end: whole("end"),
    from: seconds("from"), // of the engine's clock, on the axis of time
    to: seconds("to"),
    axis: params.get("axis") in AXES ? params.get("axis") : "ticks",
    request: params.get("request"),
  };
}

/** Return the hash of the moment that is looked at. */
export function hashOf(history) {
  const { axis, pinned, request } = view.get();
  const { axis: along, lo, hi, ticks } = windowOf(history);
  const { engine_id: engine, incarnation_id: run } = history.engine;
  const last = ticks.at(-1) ?? tickAt(history, along, hi, Infinity); // a window of time may have no tick in it
  if (!last) return "#ticks";
  const tick = pinned ?? last.tick_id;
  const part =
    axis === "time" ? { from: lo.toFixed(6), to: hi.toFixed(6) } : { n: ticks.length, end: last.tick_id };
  const asked = { engine, run: run.slice(0, RUN), tick, ...part, axis, ...(request && { request }) };
  return `#ticks?${new URLSearchParams(asked)}`;
}

/** Take the link in the address bar; one without a moment is to what happens now. */
export function read() {
  link.set({ asked: parse(location.hash), problem: null });
  if (location.hash === "#ticks") goLive();
}

/** Do the next thing towards what is asked for, as far as the feed is. */
export async function obey() {
  const { asked } = link.get();
  const { engines, engine, history } = feed.get();
  if (!asked || !engines.length) return;
  if (asked.engine !== null && !engines.includes(asked.engine)) {
    fail(`This server has no engine ${asked.engine}.`);
  } else if (asked.engine !== null && asked.engine !== (engine ?? engines[0])) show(asked.engine);
  else if (history?.ticks.length) await look(history, asked);
}

async function look(history, asked) {
  const { incarnation_id: run } = history.engine;
  const named = `Tick ${count(asked.tick)}`;
  if (asked.run && !run.startsWith(asked.run)) {
    fail(`${named} is of an earlier run: the engine was restarted since, and its ticks went with it.`);
    return;
  }
  if (!history.tick(asked.tick) && asked.tick < history.lastId) await lookBack(history);
  if (link.get().asked !== asked) return;
  if (history.tick(asked.tick)) open(history, asked);
  else if (asked.tick > history.lastId)
    fail(`${named} has not happened yet: the newest is ${count(history.lastId)}.`);
  else fail(`${named} is too old: the engine remembers its ticks from ${count(history.firstId)} on.`);
}

/** Show a part of the clock, or `n` ticks up to `end`, or as many around the one that is asked for. */
function open(history, { tick, n, end, from, to: until, axis: name, request }) {
  const axis = AXES[name];
  const to = end !== null && end >= tick && end < tick + n ? end : tick + (n >> 1);
  const around = history.between(to - n + 1, to);
  let [lo, hi] = [to - n + 0.5, to + 0.5];
  if (name === "time") [lo, hi] = [axis.leftOf(around[0]), axis.rightOf(around.at(-1))];
  if (name === "time" && from !== null && until - from >= axis.least)
    [lo, hi] = [Math.max(from, until - LONGEST_S), until];
  pause(history);
  view.set({ axis: name, end: hi, span: { ...view.get().span, [name]: hi - lo } });
  pick(history, tick);
  view.set({ request });
  link.set({ asked: null, problem: null });
}

/** Say why not, beside what happens now. */
function fail(problem) {
  goLive();
  link.set({ asked: null, problem });
}

let writing = 0;

/** Keep the address bar at the moment looked at, or at none while live. Browsers dislike it many times a second. */
export function write(history) {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const { asked, problem } = link.get();
    if (asked || problem || !location.hash.startsWith("#ticks")) return;
    const hash = isLive() ? "#ticks" : hashOf(history);
    if (hash !== location.hash) window.history.replaceState(null, "", hash);
  }, 300);
}

/** Copy the link to the moment looked at. Returns what to say of it. */
export async function copyLink(history) {
  pause(history);
  const hash = hashOf(history);
  window.history.replaceState(null, "", hash);
  try {
    await navigator.clipboard.writeText(location.href);
    return "Link copied.";
  } catch {
    return "The link is in the address bar.";
  }
}
