// A window of ticks cut into columns, none narrower than a pixel, so that drawing costs pixels and not ticks. No DOM.

/** Return `{left, right, ticks}` of each column. Their bounds do not move with the window, or it would flicker. */
export function columnsOf(ticks, axis, lo, hi, nPixels) {
  const pixel = (hi - lo) / nPixels;
  const columns = [];
  let before = null;
  for (const tick of ticks) {
    const at = Math.floor(axis.leftOf(tick) / pixel);
    const right = axis.rightOf(tick);
    if (at === before) {
      const last = columns.at(-1);
      last.ticks.push(tick);
      last.right = right;
    } else columns.push({ left: axis.leftOf(tick), right, ticks: [tick] });
    before = at;
  }
  return columns;
}

/** Return of each column the tick that has most of something: what is drawn of it. */
export const peaks = (columns, of) =>
  columns.map(({ ticks }) => ticks.reduce((most, tick) => (of(tick) > of(most) ? tick : most)));

/** Return how many ticks a column holds, at most. */
export const mostIn = (columns) => columns.reduce((most, { ticks }) => Math.max(most, ticks.length), 0);
