// Quantiles of many samples: counts in buckets 3 % wide, one set per second, forgotten after a minute. No DOM.

const MINUTE_S = 60;
const LEAST = 1e-5;
const GROWTH = Math.log(1.03);
const N_BUCKETS = 600; // 10 µs to over 8 minutes

const bucketOf = (value) =>
  Math.min(N_BUCKETS - 1, Math.max(0, Math.round(Math.log(Math.max(value, LEAST) / LEAST) / GROWTH)));

/** Samples of the last minute by the second in which they happened. */
export class LastMinute {
  bySecond = new Map();
  newest = -Infinity;

  /** Note samples that happened at `atS`. */
  add(atS, values) {
    const second = Math.floor(atS);
    if (!values.length || second <= this.newest - MINUTE_S) return;
    let counts = this.bySecond.get(second);
    if (!counts) {
      counts = new Uint32Array(N_BUCKETS);
      this.newest = Math.max(this.newest, second);
      this.forget(this.newest);
      this.bySecond.set(second, counts);
    }
    for (const value of values) counts[bucketOf(value)] += 1;
  }

  /** Let go of what is older than a minute; also while nobody asks for a summary. */
  forget(nowS) {
    for (const second of this.bySecond.keys()) if (second <= nowS - MINUTE_S) this.bySecond.delete(second);
  }

  /** Return `{n, at: share => value}` of what happened in the minute before `nowS`, but not before `sinceS`. */
  summary(nowS, sinceS = -Infinity) {
    const sum = new Uint32Array(N_BUCKETS);
    let n = 0;
    this.forget(nowS);
    for (const [second, counts] of this.bySecond) {
      if (second < Math.floor(sinceS)) continue;
      for (let i = 0; i < N_BUCKETS; i += 1) {
        sum[i] += counts[i];
        n += counts[i];
      }
    }
    const at = (share) => {
      let left = Math.max(1, Math.ceil(n * share));
      const i = sum.findIndex((c) => (left -= c) <= 0);
      return n ? LEAST * Math.exp(i * GROWTH) : null;
    };
    return { n, at };
  }
}
