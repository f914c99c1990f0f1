// Everything the page keeps in one strip, with the window in it: drag to choose another.
import { count, duration, some } from "../parts/format.js";
import { html, useLayoutEffect, useRef } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { colour, theme } from "../parts/theme.js";
import { AXES, reachOf, ticksBetween } from "../plots/axis.js";
import { sized, useWidth } from "../plots/canvas.js";
import { columnsOf } from "../plots/columns.js";
import { zoomIn, zoomOut } from "../plots/keys.js";
import { GUTTER, LOGARITHMIC, MARGIN } from "../plots/plot.js";
import { pan, showAll, showPart, view, windowOf } from "../plots/window.js";

const HEIGHT = 40;
const GRIP = 8; // pixels from an edge of the window that take hold of it
const FAR = 4; // pixels from which on a press draws a new window

export function Overview({ history }) {
  const strip = useRef(null);
  const canvas = useRef(null);
  const drag = useRef(null);
  const width = useWidth(strip);
  useStore(theme);
  const part = windowOf(history, view.get());
  const { axis, lo, hi, ticks } = part;
  const reach = reachOf(history, axis);
  const all = { lo: Math.min(reach.lo, lo), hi: Math.max(reach.hi, hi) }; // the first window may reach further
  useLayoutEffect(() => {
    if (width) paint(canvas.current, width, history, axis, all);
  });
  const share = (at) => (at - all.lo) / (all.hi - all.lo);
  const inner = () => strip.current.clientWidth - GUTTER - MARGIN;
  const pixelOf = (at) => GUTTER + share(at) * inner();
  const xOf = (event) => event.clientX - strip.current.getBoundingClientRect().left;
  const placeAt = (x) => all.lo + Math.max(0, Math.min(1, (x - GUTTER) / inner())) * (all.hi - all.lo);
  const onDown = (event) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const x = xOf(event);
    const at = placeAt(x);
    const [left, right] = [pixelOf(lo), pixelOf(hi)];
    const holds = (edge) => right - left > 3 * GRIP && Math.abs(x - edge) < GRIP;
    const inside = at >= lo && at <= hi;
    const whole = hi - lo > 0.9 * (all.hi - all.lo); // there is nowhere to move it to: draw a new one
    if (holds(left)) drag.current = { from: hi };
    else if (holds(right)) drag.current = { from: lo };
    else drag.current = { from: at, x, grasp: inside ? hi - at : (hi - lo) / 2, moves: inside && !whole };
  };
  const onMove = (event) => {
    const { current } = drag;
    if (!current) return;
    const x = xOf(event);
    const at = placeAt(x);
    if (current.moves) pan(history, at + current.grasp);
    else if (current.x === undefined || Math.abs(x - current.x) >= FAR) {
      current.drawn = true;
      showPart(history, Math.min(at, current.from), Math.max(at, current.from));
    }
  };
  const onUp = (event) => {
    const { current } = drag;
    drag.current = null;
    if (!current || current.grasp === undefined || current.drawn || current.moves) return;
    pan(history, placeAt(xOf(event)) + current.grasp); // a click
  };
  const onKey = (event) => {
    const far = (hi - lo) * (event.shiftKey ? 1 : 0.25);
    const act = {
      ArrowLeft: () => pan(history, hi - far),
      ArrowRight: () => pan(history, hi + far),
      Home: () => pan(history, reach.lo),
      End: () => pan(history, reach.hi),
      "+": () => zoomIn(history),
      "=": () => zoomIn(history),
      "-": () => zoomOut(history),
      0: () => showAll(history),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    act();
    event.preventDefault();
  };
  const [first, last] = [ticks[0]?.tick_id, ticks.at(-1)?.tick_id];
  const text = ticks.length ? `ticks ${count(first)} to ${count(last)}` : "no ticks";
  const past = reachOf(history, AXES.time);
  const shown = share(hi) - share(lo);
  const box = { left: leftAt(share(lo)), width: `calc((100% - ${GUTTER + MARGIN}px) * ${shown})` };
  return html`<div class="overview" ref=${strip} role="slider" tabindex="0" aria-label="Part that is shown"
      aria-valuemin=${history.firstId} aria-valuemax=${history.lastId} aria-valuenow=${last ?? history.lastId}
      aria-valuetext=${text} aria-description="Arrow keys move it, plus and minus zoom, 0 shows all."
      title=${`${some(history.ticks.length, "tick")} in ${duration(past.hi - past.lo)} are kept`}
      onPointerDown=${onDown} onPointerMove=${onMove} onPointerUp=${onUp} onPointerCancel=${onUp} onKeyDown=${onKey}>
    <canvas ref=${canvas}></canvas>
    <div class="brush" style=${box}></div>
  </div>`;
}

const leftAt = (share) => `calc(${GUTTER}px + (100% - ${GUTTER + MARGIN}px) * ${share})`;

function paint(canvas, width, history, axis, { lo, hi }) {
  const ctx = sized(canvas, width, HEIGHT);
  const inner = width - GUTTER - MARGIN;
  const most = LOGARITHMIC.fwd(history.engine.token_budget);
  const x = (at) => GUTTER + ((at - lo) / (hi - lo)) * inner;
  ctx.fillStyle = colour("lane");
  ctx.fillRect(GUTTER, 0, inner, HEIGHT);
  for (const { left, right, ticks } of columnsOf(ticksBetween(history, axis, lo, hi), axis, lo, hi, inner)) {
    const bar = (name, tokens) => {
      const high = (LOGARITHMIC.fwd(tokens) / most) * (HEIGHT - 4);
      ctx.fillStyle = colour(name);
      ctx.fillRect(x(left), HEIGHT - high, Math.max(1, x(right) - x(left)), high);
    };
    bar("prefill", Math.max(...ticks.map((tick) => tick.n_decode + tick.n_prefill)));
    bar("decode", Math.max(...ticks.map((tick) => tick.n_decode)));
  }
}
