// A table of requests: which match, in which order, and a page of them. No DOM.
import { begunS } from "../feed/lives.js";
import { endOf } from "./life.js";

export const PAGE = 25;
const ORDER = { generating: 0, prefilling: 1, queued: 2, ended: 3 };
const endedOr = (request, nowS) => request.ended_s ?? nowS;

/** What columns sort by; null is last, whichever way. */
export const KEYS = {
  request: ({ request_id: id }) => id,
  state: (request) => endOf(request),
  slot: ({ slot_id: slot }) => slot,
  tenant: ({ tenant }) => tenant || null,
  model: ({ model }) => model || null,
  prompt: ({ n_prompt: n }) => n,
  cached: ({ n_cached: n }) => n,
  output: ({ n_output: n }) => n,
  queue: (request, nowS) =>
    request.unseen && request.assigned_s === null
      ? null
      : (request.assigned_s ?? endedOr(request, nowS)) - request.arrived_s,
  TTFT: (request) => (request.first_token_s === null ? null : request.first_token_s - begunS(request)),
  total: (request, nowS) => (request.unseen ? null : endedOr(request, nowS) - begunS(request)),
};

/** Return the requests that have every word: in id, model, tenant, state, how they ended, slot. */
export function matching(requests, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return requests;
  return requests.filter((request) => {
    const { request_id: id, state, model, tenant, slot_id: slot, error, prompt } = request;
    const fields = [id, state, endOf(request), model, tenant, `slot${slot ?? ""}`, error, prompt];
    const text = fields.join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** Return requests by a column; without one, those inside, then those that ended last. */
export function sorted(requests, by, down, nowS) {
  if (!by) {
    const at = (request) => request.ended_s ?? request.arrived_s;
    return [...requests].sort((a, b) => ORDER[a.state] - ORDER[b.state] || at(b) - at(a));
  }
  const sign = down ? -1 : 1;
  const keyed = requests.map((request) => [KEYS[by](request, nowS) ?? null, request]);
  return keyed
    .sort(([a], [b]) => (a === null) - (b === null) || sign * ((a > b) - (a < b)))
    .map(([, request]) => request);
}
