// The plots over ticks: tokens, time, queue, KV cells.
import { duration, percent } from "./format.js";
import { Figure, Plot, bars, steps } from "./plot.js";
import { html } from "./preact.js";
import { column, ids, pauses } from "./series.js";
import { colour } from "./theme.js";

const roomy = (max, least) => Math.max(max * 1.12, least);

/** Mark where the engine idled: on its own time axis those moments would be most of the plot. */
function drawPauses(u, ticks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = colour("muted");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const id of pauses(ticks)) {
    const x = Math.round(u.valToPos(id - 0.5, "x", true)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** Decode and prefill tokens of each tick, stacked, against the budget. */
export function TokenPlot({ ticks, from, to, budget, height = 190, withX = true }) {
  const sum = column(ticks, from, to, (tick) => tick.n_decode + tick.n_prefill);
  const decode = column(ticks, from, to, (tick) => tick.n_decode);
  const most = Math.max(0, ...sum);
  const shown = most > budget / 4;
  const data = [ids(from, to), sum, decode, ids(from, to).map(() => (shown ? budget : null))];
  return html`<${Plot}
    series=${[bars("prefill", "prefill"), bars("decode", "decode"), steps("limit", "budget", [6, 4])]}
    data=${data} from=${from} to=${to} height=${height} withX=${withX}
    unit=${(v) => (Number.isInteger(v) ? `${v.toLocaleString("en")} tok` : "")}
    most=${() => roomy(shown ? budget : most, 4)}
    onDraw=${(u) => drawPauses(u, ticks)}
    label=${`Tokens of each tick: at most ${most} of the budget of ${budget}.`} />`;
}

/** TokenPlot with its words. */
export function Tokens(props) {
  const legend = [
    ["decode", "decode"],
    ["prefill", "prefill"],
    ["limit", `budget ${props.budget} tokens`],
  ];
  const note =
    "One bar per tick: decode tokens continue running answers, prefill tokens read new prompts. " +
    "Dotted lines: before this tick the engine had nothing to do.";
  return html`<${Figure} title="Tokens per tick" legend=${legend} note=${note}><${TokenPlot} ...${props} /><//>`;
}

/** How long ticks took, beside the prediction and the ITL target. */
export function TickTime({ ticks, from, to, target }) {
  const longest = Math.max(0, ...ticks.map((tick) => tick.total_s));
  const least = Math.min(target || Infinity, ...ticks.map((tick) => tick.target_s || Infinity));
  const shown = longest > least / 4; // else it would squeeze what it is compared with
  const data = [
    ids(from, to),
    column(ticks, from, to, (tick) => tick.total_s * 1e3),
    column(ticks, from, to, (tick) => tick.predicted_s * 1e3 || null),
    column(ticks, from, to, (tick) => (shown ? (tick.target_s || target) * 1e3 || null : null)),
  ];
  const legend = [
    ["time", "tick"],
    ["predicted", "predicted"],
    ["limit", Number.isFinite(least) ? `ITL target ${duration(least)}` : "no ITL target"],
  ];
  const note =
    "How long each tick took. Whoever streams gets a token per tick, so this is the gap between tokens; " +
    "prefill beside running streams keeps within the target.";
  return html`<${Figure} title="Tick time" legend=${legend} note=${note}>
    <${Plot} series=${[bars("time", "tick"), steps("predicted", "predicted"), steps("limit", "target", [6, 4])]}
      data=${data} from=${from} to=${to} height=${120} withX=${false}
      unit=${(ms) => duration(ms / 1e3)} most=${(max) => roomy(max, 0.1)}
      label=${`Time of each tick: at most ${duration(longest)}.`} /><//>`;
}

/** Waiting requests. */
export function Queue({ ticks, from, to }) {
  const waiting = column(ticks, from, to, (tick) => tick.n_queued);
  const most = Math.max(0, ...waiting);
  return html`<${Figure} title="Queue" legend=${[["queue", "waiting requests"]]}
      note="Requests that wait for a slot, at the end of each tick. None is good; a steady rise means too
        much load.">
    <${Plot} series=${[bars("queue", "waiting")]} data=${[ids(from, to), waiting]} from=${from} to=${to}
      height=${80} withX=${false} unit=${(v) => (Number.isInteger(v) ? `${v} req` : "")}
      most=${(max) => roomy(max, 2)}
      label=${`Waiting requests: at most ${most}.`} /><//>`;
}

/** Share of the KV cache that running requests and kept prefixes hold. */
export function KvUse({ ticks, from, to }) {
  const used = column(ticks, from, to, (tick) => tick.n_cells_used / tick.n_cells);
  const running = column(ticks, from, to, (tick) => (tick.n_cells_used - tick.n_cells_idle) / tick.n_cells);
  const most = Math.max(0, ...used);
  return html`<${Figure} title="KV cache" legend=${[
    ["decode", "running requests"],
    ["cached", "kept for reuse"],
  ]}
      note="Share of the cache's cells in use. Prefixes of ended requests stay for reuse and give way when
        room is needed.">
    <${Plot} series=${[bars("cached", "kept"), bars("decode", "running")]} data=${[ids(from, to), used, running]}
      from=${from} to=${to} height=${102} unit=${percent} most=${(max) => Math.min(1, roomy(max, 0.02))}
      label=${`KV cache in use: at most ${percent(most)}.`} /><//>`;
}
