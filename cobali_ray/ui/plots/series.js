// What is computed from some ticks. No DOM.

/** Return the ids of ticks before which the engine had nothing to do for longer than `leastS`. */
export function pauses(ticks, leastS = 0.05) {
  const ids = [];
  for (let i = 1; i < ticks.length; i += 1) {
    const before = ticks[i - 1];
    const pauseS = ticks[i].started_s - before.started_s - before.total_s;
    if (pauseS > leastS && ticks[i].tick_id === before.tick_id + 1) ids.push(ticks[i].tick_id);
  }
  return ids;
}

/** Return the ticks up to `n` before and after one. */
export const ticksAround = (history, tick, n = 60) => history.between(tick.tick_id - n, tick.tick_id + n);

/** Return the median and the largest of some values, null for none. */
export function middleAndMost(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return { middle: sorted[sorted.length >> 1], most: sorted.at(-1) };
}
