// Where a request is that has no token yet: its place in line, or how far its prompt is read. No DOM.
import { count } from "./format.js";
import { begunS } from "./lives.js";

/**
 * A request arrives after it was sent; told by the feed's clock, which is a little behind, within so many seconds.
 * Of two that arrived closer together than `CLEAR_S`, nobody can say which is whose.
 */
const EARLIEST_S = -0.02;
const LATEST_S = 1;
const CLEAR_S = 0.1;

/**
 * Say how a request stands that was sent at `sentS` of the page's clock.
 *
 * Its id comes with its first token, so that it is told by its time. Where several came then, nothing is said.
 */
export function standing(history, sentS) {
  const mine = history && waitingOf(history, sentS);
  if (!mine) return "waiting for the first token …";
  if (mine.state === "queued") {
    const ahead = open(history).filter((r) => r.state === "queued" && r.arrived_s < mine.arrived_s).length;
    return ahead ? `waiting for a slot, ${count(ahead)} ahead …` : "waiting for a slot, next in line …";
  }
  const read = Math.max(mine.n_computed, mine.n_cached);
  if (mine.state === "prefilling" && read)
    return `reading the prompt: ${count(read)} of ${count(mine.n_prompt)} tokens …`;
  return "reading the prompt …";
}

const open = (history) =>
  [...history.requests.values()].filter(
    (request) => request.state !== "ended" && request.first_token_s === null,
  );

function waitingOf(history, sentS) {
  const atS = history.nowS + sentS - history.atS;
  const later = open(history)
    .map((request) => ({ request, lateS: begunS(request) - atS }))
    .filter(({ lateS }) => lateS >= EARLIEST_S && lateS < LATEST_S)
    .sort((a, b) => a.lateS - b.lateS);
  return later.length === 1 || later[1]?.lateS - later[0]?.lateS > CLEAR_S ? later[0].request : null;
}
