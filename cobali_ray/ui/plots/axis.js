// The horizontal axis that all plots share: ticks side by side, or the engine's clock. No DOM.
import { clockTime, count } from "../parts/format.js";

/** Each has a unit of its own: a tick's id, or seconds. `least` is the narrowest window, `usual` the first one. */
export const AXES = {
  ticks: {
    name: "ticks",
    least: 4,
    usual: 120,
    steps: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000],
    leftOf: (tick) => tick.tick_id - 0.5,
    rightOf: (tick) => tick.tick_id + 0.5,
  },
  time: {
    name: "time",
    least: 0.005,
    usual: 3,
    steps: [
      0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600,
      7200, 21600, 86400,
    ],
    leftOf: (tick) => tick.started_s,
    rightOf: (tick) => tick.started_s + tick.total_s,
  },
};

/** Return a part of the axis of ticks, by ids. */
export const partOf = (from, to) => ({ axis: AXES.ticks, lo: from - 0.5, hi: to + 0.5 });

/** Return where the known ticks begin and end on an axis. */
export const reachOf = ({ ticks }, axis) => ({ lo: axis.leftOf(ticks[0]), hi: axis.rightOf(ticks.at(-1)) });

/** Return the ticks of which something lies between two places of an axis. */
export function ticksBetween({ ticks }, axis, lo, hi) {
  const first = firstThat(ticks, (tick) => axis.rightOf(tick) > lo);
  return ticks.slice(first, Math.max(first, firstThat(ticks, (tick) => axis.leftOf(tick) >= hi)));
}

/** Return the tick at a place of an axis, or the nearest one that is not further off than `slack`; else null. */
export function tickAt({ ticks }, axis, x, slack = 0) {
  const i = firstThat(ticks, (tick) => axis.rightOf(tick) > x);
  const far = (tick) => Math.max(axis.leftOf(tick) - x, x - axis.rightOf(tick), 0);
  const near = [ticks[i], ticks[i - 1]].filter((tick) => tick && far(tick) <= slack);
  return near.sort((a, b) => far(a) - far(b))[0] ?? null;
}

/** Return the index of the first item, of those in order, for which something holds from there on. */
function firstThat(items, holds) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(items[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Return at most `most` places to name between two others: `{at, text}`. */
export function marksOf(axis, lo, hi, most, history) {
  const step = axis.steps.find((candidate) => (hi - lo) / candidate <= most) ?? axis.steps.at(-1);
  const offset = axis === AXES.time ? history.offsetS : 0; // round times of day, not of the engine's clock
  const milliseconds = step < 1;
  const text = (at) => (axis === AXES.time ? clockTime(at + offset, { milliseconds }) : `tick ${count(at)}`);
  const marks = [];
  const first = axis === AXES.time ? lo : Math.max(lo, 0); // half a bar lies left of tick 0
  for (let n = Math.ceil((first + offset) / step); n * step <= hi + offset; n += 1) {
    const at = n * step - offset;
    marks.push({ at, text: text(axis === AXES.time ? at + 1e-6 : at) });
  }
  return marks;
}
