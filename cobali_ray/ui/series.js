// Columns of a window of ticks, one entry per tick id, null where a tick is missing. No DOM.

/** Return `of(tick)` for every id of `from .. to`. */
export function column(ticks, from, to, of) {
  const values = new Array(to - from + 1).fill(null);
  for (const tick of ticks) values[tick.tick_id - from] = of(tick);
  return values;
}

/** Return the ids themselves. */
export const ids = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);

/** Return the ids of ticks before which the engine had nothing to do for longer than `leastS`. */
export function pauses(ticks, leastS = 0.05) {
  const found = [];
  for (let i = 1; i < ticks.length; i += 1) {
    const before = ticks[i - 1];
    const pauseS = ticks[i].started_s - before.started_s - before.total_s;
    if (pauseS > leastS && ticks[i].tick_id === before.tick_id + 1) found.push(ticks[i].tick_id);
  }
  return found;
}

/** Return the median and the largest of some values, null for none. */
export function middleAndMost(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return { middle: sorted[sorted.length >> 1], most: sorted.at(-1) };
}
