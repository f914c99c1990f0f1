// Where a request is that has no token yet: its place in line, or how far its prompt is read. No DOM.
import { count } from "../parts/format.js";

/** Say how the request stands that was sent with this `x-request-id`. */
export function standing(history, xRequestId) {
  const mine = history && open(history).find((request) => request.x_request_id === xRequestId);
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
