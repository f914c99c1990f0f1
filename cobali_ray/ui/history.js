// What the feed has told so far: ticks, requests, who held which slot when. No DOM.
import { LastMinute } from "./quantiles.js";

const MOST_TICKS = 8192;
const MOST_ENDED = 1000;
export const DECODE = 1;

/** Everything known of one engine process; a new engine.id begins a new one. */
export class History {
  constructor(packet) {
    this.engine = packet.engine;
    this.next = 0;
    this.ticks = []; // ordered by tick_id
    this.requests = new Map(); // by request_id, oldest arrival first
    this.stays = Array.from({ length: packet.engine.n_slots }, () => []); // per slot, in order of time
    this.itl = new LastMinute();
    this.add(packet, 0);
  }

  /** Take another packet of the same engine; `atS` is the page's own clock. */
  add(packet, atS) {
    this.engine = packet.engine;
    this.nowS = packet.now_s;
    this.atS = atS;
    this.offsetS = packet.unix_s - packet.now_s;
    this.next = Math.max(this.next, packet.next);
    this.addTicks(packet.ticks);
    this.addRequests(packet);
  }

  addTicks(ticks) {
    const last = this.lastId;
    const fresh = ticks.filter((tick) => tick.tick_id > last);
    const first = this.ticks[0]?.tick_id ?? Infinity;
    const older = ticks.filter((tick) => tick.tick_id < first && tick.tick_id <= last);
    for (const tick of fresh) this.itl.add(tick.started_s + tick.total_s, tick.gaps_s);
    this.ticks.push(...fresh);
    if (older.length) this.ticks.unshift(...older);
    if (this.ticks.length > MOST_TICKS) this.ticks.splice(0, this.ticks.length - MOST_TICKS);
  }

  addRequests(packet) {
    const told = new Set();
    for (const request of packet.requests) {
      told.add(request.request_id);
      this.requests.set(request.request_id, request);
      this.addStays(request);
    }
    for (const [id, request] of this.requests) {
      // Every packet names all open requests: what is missing ended while nobody told us.
      if (request.state === "ended" || told.has(id)) continue;
      this.requests.set(id, { ...request, state: "ended", ended_s: packet.now_s });
    }
    this.forget();
  }

  addStays({ request_id: id, stays }) {
    for (const [slot, fromS, untilS] of stays) {
      const all = this.stays[slot];
      const before = all.findLastIndex((stay) => stay.fromS <= fromS);
      if (all[before]?.fromS === fromS) all[before] = { id, fromS, untilS };
      else all.splice(before + 1, 0, { id, fromS, untilS });
    }
  }

  forget() {
    let extra = -MOST_ENDED;
    for (const request of this.requests.values()) extra += request.state === "ended";
    if (extra <= 0) return;
    const gone = new Set();
    for (const [id, request] of this.requests) {
      if (gone.size === extra) break;
      if (request.state === "ended") gone.add(id);
    }
    for (const id of gone) this.requests.delete(id);
    this.stays = this.stays.map((stays) => stays.filter((stay) => !gone.has(stay.id)));
  }

  get lastId() {
    return this.ticks.at(-1)?.tick_id ?? -1;
  }

  get firstId() {
    return this.ticks[0]?.tick_id ?? 0;
  }

  /** Return the ticks with `from <= tick_id <= to`. */
  between(from, to) {
    return this.ticks.slice(this.indexOf(from), this.indexOf(to + 1));
  }

  /** Return a tick by its id. */
  tick(id) {
    const tick = this.ticks[this.indexOf(id)];
    return tick?.tick_id === id ? tick : null;
  }

  indexOf(id) {
    let [low, high] = [0, this.ticks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ticks[middle].tick_id < id) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Return the request that held a slot during a tick, or null. */
  holder(slot, tick) {
    return this.holders()(slot, tick);
  }

  /** Return the same as a function for ticks in order of time, which looks at each stay once. */
  holders() {
    const at = new Array(this.stays.length).fill(-1);
    return (slot, { started_s: startedS, total_s: totalS }) => {
      const stays = this.stays[slot];
      while (stays[at[slot] + 1]?.fromS <= startedS + totalS) at[slot] += 1;
      const stay = stays[at[slot]];
      if (!stay || (stay.untilS !== null && stay.untilS < startedS)) return null;
      return this.requests.get(stay.id) ?? null;
    };
  }

  /** Return the engine's clock now, given the page's. */
  now(atS) {
    return this.nowS + Math.max(0, atS - this.atS);
  }

  /** Return seconds since 1970 of a moment of the engine. */
  unix(momentS) {
    return momentS + this.offsetS;
  }
}

/** Rates of the last few seconds and quantiles of the last minute, at the engine's `nowS`. */
export function summaryOf(history, nowS, overS = 5) {
  const sum = { ticks: 0, decode: 0, prefill: 0 };
  let sinceS = nowS;
  for (let i = history.ticks.length - 1; i >= 0; i -= 1) {
    const tick = history.ticks[i];
    if (tick.started_s < nowS - overS) break;
    sinceS = tick.started_s;
    sum.ticks += 1;
    sum.decode += tick.n_sampled;
    sum.prefill += tick.n_prefill;
  }
  const whole = history.ticks[0]?.started_s < nowS - overS ? overS : Math.max(nowS - sinceS, 0.5);
  const ttfts = [];
  for (const request of history.requests.values()) {
    if (request.first_token_s > nowS - 60) ttfts.push(request.first_token_s - request.arrived_s);
  }
  ttfts.sort((a, b) => a - b);
  const ttft = (share) => ttfts[Math.min(ttfts.length - 1, Math.floor(ttfts.length * share))] ?? null;
  return {
    tickRate: sum.ticks / whole,
    outputRate: sum.decode / whole,
    prefillRate: sum.prefill / whole,
    ttft: { n: ttfts.length, at: ttft },
    itl: history.itl.summary(nowS),
    last: history.ticks.at(-1) ?? null,
  };
}
