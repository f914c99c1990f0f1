// Rates of the last few seconds and quantiles of the last minute, as far as the ticks of that time are known. No DOM.

const RATES_S = 5;
const QUANTILES_S = 60;

/** Sum up at the engine's `nowS`. `ratesS` and `quantilesS` are the spans that the numbers are over. */
export function summaryOf(history, nowS) {
  const ratesS = Math.min(RATES_S, Math.max(nowS - history.sinceS, 0.5));
  const sum = { ticks: 0, decode: 0, prefill: 0 };
  for (let i = history.ticks.length - 1; i >= 0; i -= 1) {
    const tick = history.ticks[i];
    if (tick.started_s < nowS - ratesS) break;
    sum.ticks += 1;
    sum.decode += tick.n_sampled;
    sum.prefill += tick.n_prefill;
  }
  const ttfts = history.lives.ttfts(nowS, history.sinceS);
  const ttft = (share) => ttfts[Math.min(ttfts.length - 1, Math.floor(ttfts.length * share))] ?? null;
  return {
    ratesS,
    tickRate: sum.ticks / ratesS,
    outputRate: sum.decode / ratesS,
    prefillRate: sum.prefill / ratesS,
    quantilesS: Math.min(QUANTILES_S, nowS - history.sinceS),
    ttft: { n: ttfts.length, at: ttft },
    itl: history.itl.summary(nowS, history.sinceS),
    last: history.ticks.at(-1) ?? null,
  };
}
