// What the feed has sent so far: ticks, and in `lives` which request held which slot when. No DOM.
import { Lives } from "./lives.js";
import { LastMinute } from "./quantiles.js";

const MOST_TICKS = 8192;
const NEWEST = 2048; // of them kept for when somebody goes live again
const NOTHING = { from: Infinity, to: Infinity, pinned: null, request: null };
export const DECODE = 1;

/** Everything known of one engine process; a new engine.incarnation_id begins a new one. */
export class History {
  constructor(packet) {
    this.engine = packet.engine;
    this.nowS = packet.now_s;
    this.next = 0;
    this.ticks = []; // ordered by tick_id
    this.nGaps = 0; // how often ticks were missing where packets should have met
    this.sinceS = -Infinity; // no tick is missing since then
    this.lives = new Lives(packet.engine.n_slots);
    this.itl = new LastMinute();
    this.kept = NOTHING;
    this.add(packet, 0);
  }

  /** Take another packet of the same engine; `atS` is the page's own clock. */
  add(packet, atS) {
    const lastSeenS = this.nowS;
    this.next = Math.max(this.next, packet.next);
    this.addTicks(packet.ticks);
    if (packet.now_s < lastSeenS) this.lives.takeEnds(packet.requests);
    else {
      this.engine = packet.engine;
      this.nowS = packet.now_s;
      this.atS = atS;
      this.offsetS = packet.unix_s - packet.now_s;
      this.lives.take(packet.requests, lastSeenS);
    }
    this.lives.forget(this.nowS, this.keeper());
  }

  addTicks(ticks) {
    const last = this.lastId;
    const missing = ticks.filter(({ tick_id: id }) => id > last || !this.tick(id));
    if (!missing.length) return;
    for (const tick of missing) this.itl.add(tick.started_s + tick.total_s, tick.gaps_s);
    this.ticks.push(...missing);
    if (missing[0].tick_id !== last + 1) {
      this.ticks.sort((a, b) => a.tick_id - b.tick_id);
      const reachS = this.reachS();
      if (this.lastId > last && !this.tick(last + 1)) {
        this.nGaps += 1;
        this.sinceS = reachS;
      } else this.sinceS = Math.min(this.sinceS, reachS);
    }
    this.trim();
  }

  /** Return when the newest ticks without a gap begin; at the engine's first tick, everything is known. */
  reachS() {
    let i = this.ticks.length - 1;
    while (this.ticks[i - 1]?.tick_id === this.ticks[i].tick_id - 1) i -= 1;
    return this.ticks[i].tick_id === 0 ? -Infinity : this.ticks[i].started_s;
  }

  /** Say what is looked at, which stays: a window of ticks, a pinned one, a request; null for nothing. */
  keep(what) {
    this.kept = what ?? NOTHING;
  }

  /** Forget the oldest ticks, but none that is looked at: first what lies between those and the newest. */
  trim() {
    const extra = this.ticks.length - MOST_TICKS;
    if (extra <= 0) return;
    const { from, to, pinned } = this.kept;
    const newest = this.lastId - NEWEST;
    const spare = this.ticks.filter(({ tick_id: id }) => id !== pinned);
    const between = spare.filter(({ tick_id: id }) => id > to && id <= newest).reverse();
    const before = spare.filter(({ tick_id: id }) => id < from);
    const dropped = new Set([...between, ...before].slice(0, extra));
    this.ticks = this.ticks.filter((tick) => !dropped.has(tick));
  }

  /** Return a function that says whether a request is followed, or belongs to the ticks looked at. */
  keeper() {
    const { from, to, request: followed } = this.kept;
    const ticks = this.between(from, to);
    const [sinceS, untilS] = [ticks[0]?.started_s ?? Infinity, ticks.at(-1)?.started_s ?? -Infinity];
    return (request) =>
      request.request_id === followed || (request.arrived_s <= untilS && request.ended_s >= sinceS);
  }

  get requests() {
    return this.lives.requests;
  }

  /** How many slots have a request. */
  get nBusy() {
    return [...this.requests.values()].filter((r) => r.state !== "ended" && r.slot_id !== null).length;
  }

  get lastId() {
    return this.ticks.at(-1)?.tick_id ?? -1;
  }

  get firstId() {
    return this.ticks[0]?.tick_id ?? 0;
  }

  /** Say whether any of the newest `n` ticks is missing. */
  lacks(n) {
    return this.ticks.length - this.indexOf(this.lastId - n + 1) < Math.min(n, this.lastId + 1);
  }

  /** Return the ticks with `from <= tick_id <= to`. */
  between(from, to) {
    return this.ticks.slice(this.indexOf(from), this.indexOf(to + 1));
  }

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
    return this.holders()(slot, tick)?.request ?? null;
  }

  /** Return a function for ticks in order of time, which looks at each stay once: `{request, untilS}` or null. */
  holders() {
    const all = this.lives.stays;
    const at = new Array(all.length).fill(-1);
    return (slot, { started_s: startedS, total_s: totalS }) => {
      const stays = all[slot];
      while (stays[at[slot] + 1]?.fromS <= startedS + totalS) at[slot] += 1;
      const stay = stays[at[slot]];
      if (!stay || (stay.untilS !== null && stay.untilS < startedS)) return null;
      const request = this.requests.get(stay.id);
      return request ? { request, untilS: stay.untilS ?? Infinity } : null;
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
