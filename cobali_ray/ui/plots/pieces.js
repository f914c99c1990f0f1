// Lanes cut into pieces: per slot, runs of ticks with one request in one state. No DOM.
import { DECODE } from "../feed/history.js";

export const WAITS = -1; // a request held the slot, and the tick computed nothing of it

/** Return the pieces of some ticks in order, all of a window or one per column; `first` and `last` are ticks. */
export function piecesOf(history, ticks) {
  const open = [];
  const holder = history.holders();
  const pieces = [];
  const note = (i, slot, kind, request, more) => {
    const id = request?.request_id ?? null;
    const last = open[slot];
    const grows = last && last.id === id && last.kind === kind && (kind === DECODE || kind === WAITS);
    if (grows && i - last.at <= (kind === DECODE ? 2 : 1)) {
      Object.assign(last, { at: i, last: ticks[i] });
      return;
    }
    open[slot] = { slot, id, kind, request, at: i, first: ticks[i], last: ticks[i], ...more };
    pieces.push(open[slot]);
  };
  const computed = []; // per slot, the last tick that did
  for (const [i, tick] of ticks.entries()) {
    for (const [slot, start, length, kind] of tick.spans) {
      computed[slot] = tick.tick_id;
      const request = holder(slot, tick)?.request ?? null;
      const reads = kind !== DECODE && request;
      const share = reads ? Math.min(1, (start + length) / request.n_prompt) : 1;
      const cached = reads ? Math.min(share, request.n_cached / request.n_prompt) : 0;
      note(i, slot, kind, request, { share, cached });
    }
    for (let slot = 0; slot < history.engine.n_slots; slot += 1) {
      if (computed[slot] === tick.tick_id) continue;
      const held = holder(slot, tick);
      // A request that left during the tick may not have waited for it.
      if (held && held.untilS >= tick.started_s + tick.total_s) note(i, slot, WAITS, held.request);
    }
  }
  return pieces;
}
