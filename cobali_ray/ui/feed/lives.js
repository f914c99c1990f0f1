// The requests of the feed: how they stand or ended, and which slots they held when. No DOM.

const MOST_ENDED = 1000;
const MINUTE_S = 60;

/** When a request began for its client: at the HTTP server, which is before the engine knows of it. */
export const begunS = (request) => request.received_s ?? request.arrived_s;

const TIERS = { slot: "its own slot", copy: "another slot", host: "host memory", disk: "the disk" };

/** Where a request's cached tokens came from, in words; "" where there are none. */
export const cachedFrom = ({ n_cached: n, cached_from: tier }) => (n ? (TIERS[tier] ?? tier ?? "the cache") : "");

/** What is known of requests. An end that no packet reported is `unseen`; its `ended_s` is when it was last seen. */
export class Lives {
  constructor(nSlots) {
    this.requests = new Map(); // by request_id
    this.stays = Array.from({ length: nSlots }, () => []); // per slot, in order of time
    this.firsts = new Map(); // first tokens of the last minute by request_id: {atS, ttftS}
  }

  /** Take the requests of a packet, which names all open ones; those open before were last seen at `lastSeenS`. */
  take(requests, lastSeenS) {
    const ids = new Set();
    for (const request of requests) {
      ids.add(request.request_id);
      this.note(request);
    }
    for (const [id, request] of this.requests) {
      // What is missing ended without a packet that reported it.
      if (request.state !== "ended" && !ids.has(id)) this.note(unseenEnd(request, lastSeenS));
    }
  }

  /** Take what is still new in a packet that a newer one overtook: ends that no packet reported. */
  takeEnds(requests) {
    for (const request of requests) {
      const stored = this.requests.get(request.request_id);
      if (request.state === "ended" && (stored?.state !== "ended" || stored.unseen)) this.note(request);
    }
  }

  note(request) {
    const { request_id: id, first_token_s: atS } = request;
    this.requests.set(id, request);
    if (atS !== null) this.firsts.set(id, { atS, ttftS: atS - begunS(request) });
    for (const [slot, fromS, untilS] of request.stays) {
      const all = this.stays[slot];
      const before = all.findLastIndex((stay) => stay.fromS <= fromS);
      if (all[before]?.fromS === fromS) all[before] = { id, fromS, untilS };
      else all.splice(before + 1, 0, { id, fromS, untilS });
    }
  }

  /** Forget first tokens older than a minute, and the oldest of too many ended requests, but none that is `kept`. */
  forget(nowS, kept) {
    for (const [id, { atS }] of this.firsts) if (atS <= nowS - MINUTE_S) this.firsts.delete(id);
    const ended = [...this.requests.values()].filter(({ state }) => state === "ended");
    if (ended.length <= MOST_ENDED) return;
    ended.sort((a, b) => a.ended_s - b.ended_s);
    const extra = ended.slice(0, ended.length - MOST_ENDED).filter((request) => !kept(request));
    const dropped = new Set(extra.map((request) => request.request_id));
    for (const id of dropped) this.requests.delete(id);
    this.stays = this.stays.map((stays) => stays.filter((stay) => !dropped.has(stay.id)));
  }

  /** Return the times to first token that are known of the last minute, but not before `sinceS`, in order. */
  ttfts(nowS, sinceS) {
    const recent = [...this.firsts.values()].filter(({ atS }) => atS > nowS - MINUTE_S && atS >= sinceS);
    return recent.map(({ ttftS }) => ttftS).sort((a, b) => a - b);
  }
}

function unseenEnd(request, lastSeenS) {
  const stays = request.stays.map(([slot, fromS, untilS]) => [slot, fromS, untilS ?? lastSeenS]);
  return { ...request, state: "ended", unseen: true, ended_s: lastSeenS, stays };
}
