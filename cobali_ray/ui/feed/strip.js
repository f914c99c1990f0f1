// The last ticks in one small picture, drawn without the plots' library.
import { count, some } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { feed } from "./feed.js";

const N_TICKS = 90;
const RECENT_S = 5;
const tokensOf = (tick) => tick.n_decode + tick.n_prefill;

/** A link to the live ticks that shows them. */
export function Strip() {
  const { history, status, engines } = useStore(feed);
  if (!history) return null;
  const { n_slots: nSlots, engine_id: id, model } = history.engine;
  const ticks = history.ticks.slice(-N_TICKS);
  const several = engines.length > 1;
  const engineName = several ? `Engine ${id} (${model})` : "The engine";
  const busy = history.nBusy;
  const recent = history.ticks.filter(({ started_s: s }) => s > history.nowS - RECENT_S).length;
  const caption =
    status !== "live"
      ? "No ticks are arriving."
      : busy
        ? `${several ? `${engineName}: ` : ""}${count(busy)} of ${some(nSlots, "slot")} busy, ` +
          `${some(recent, "tick")} in the last ${RECENT_S} s`
        : `${engineName} is idle: ${some(nSlots, "slot")} free`;
  return html`<a class="strip" href="#ticks">
    <${TickBars} ticks=${ticks} n=${N_TICKS} most=${Math.max(4, ...ticks.map(tokensOf))} role="img"
      aria-label="Tokens of the engine's last ticks" />
    <span>${caption}<b>Watch it live</b></span></a>`;
}

/**
 * One bar per tick, the newest at the right: decode below, prefill above it. On the square root of tokens, up to
 * `most`: that keeps eight decode tokens in sight beside a chunk of hundreds.
 */
export function TickBars({ ticks, n, most, ...more }) {
  const bar = (tokens, i) => {
    const high = Math.sqrt(tokens / most).toFixed(3);
    return `M${n - ticks.length + i} 1v${-high}h.75v${high}z`;
  };
  const path = (of) => ticks.map((tick, i) => bar(of(tick), i)).join("");
  return html`<svg class="tick-bars" viewBox=${`0 0 ${n} 1`} preserveAspectRatio="none" ...${more}>
    <path class="prefill" d=${path(tokensOf)} /><path class="decode" d=${path((tick) => tick.n_decode)} /></svg>`;
}
