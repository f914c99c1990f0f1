// The last ticks in one small picture, drawn without the plots' library.
import { count, some } from "../parts/format.js";
import { html, useEffect, useRef } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { colour, theme } from "../parts/theme.js";
import { feed } from "./feed.js";

const BAR_PX = 7;
const RECENT_S = 5;

/** A link to the live ticks that shows them. */
export function Strip() {
  const { history, status, engines } = useStore(feed);
  const { version } = useStore(theme);
  const canvas = useRef(null);
  useEffect(() => void (history && draw(canvas.current, history)), [history?.lastId, history, version]);
  if (!history) return null;
  const { n_slots: nSlots, engine_id: id, model } = history.engine;
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
    <canvas ref=${canvas} role="img" aria-label="Tokens of the engine's last ticks"></canvas>
    <span>${caption}<b>Watch it live</b></span></a>`;
}

/** One bar per tick, the newest at the right: decode below, prefill above it. */
function draw(canvas, history) {
  const ratio = devicePixelRatio;
  const { clientWidth: width, clientHeight: height } = canvas;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  const n = Math.floor(width / BAR_PX);
  const ticks = history.between(history.lastId - n + 1, history.lastId);
  const most = Math.max(4, ...ticks.map((tick) => tick.n_decode + tick.n_prefill));
  for (let i = 0; i < n; i += 1) {
    const tick = history.tick(history.lastId - n + 1 + i);
    const x = width - (n - i) * BAR_PX;
    const bar = (name, from, to) => {
      ctx.fillStyle = colour(name);
      ctx.beginPath();
      ctx.roundRect(x, height - to, BAR_PX - 2, to - from, 1);
      ctx.fill();
    };
    // The root keeps eight decode tokens in sight beside a chunk of hundreds.
    const high = (tokens) => Math.sqrt(tokens / most) * height;
    if (!tick) bar("grid", 0, 3);
    else {
      bar("decode", 0, high(tick.n_decode));
      if (tick.n_prefill) bar("prefill", high(tick.n_decode), high(tick.n_decode + tick.n_prefill));
    }
  }
}
