// The plots over ticks: tokens, time, queue, KV cells.
import { count, duration, percent } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { colour } from "../parts/theme.js";
import { AXES } from "./axis.js";
import { mostIn, peaks } from "./columns.js";
import { Figure } from "./figure.js";
import { aboutTarget } from "./itl.js";
import { LOGARITHMIC, Plot, bars, steps } from "./plot.js";
import { goTo } from "./window.js";

const roomy = (max, least) => Math.max(max * 1.12, least);
const tokensOf = (tick) => tick.n_decode + tick.n_prefill;

/** Return the ids of ticks before which the engine had nothing to do for longer than `leastS`. */
function pauses(ticks, leastS = 0.05) {
  const ids = [];
  for (let i = 1; i < ticks.length; i += 1) {
    const before = ticks[i - 1];
    const pauseS = ticks[i].started_s - before.started_s - before.total_s;
    if (pauseS > leastS && ticks[i].tick_id === before.tick_id + 1) ids.push(ticks[i].tick_id);
  }
  return ids;
}

/** Mark where the engine idled, on the axis that leaves it out. */
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

/** Powers of two, or of four where those would be too many; without 1 where it would touch 0. */
function powers(most, height) {
  const room = height / Math.log2(most);
  const every = room < 24 ? 2 : 1;
  const all = Array.from({ length: Math.ceil(Math.log2(most + 1) / every) }, (_, i) => 2 ** (i * every));
  return [0, ...all.slice(room < 17 ? 1 : 0)];
}

/** Decode and prefill tokens of each tick, stacked, against the budget. */
export function TokenPlot({ ticks, part, columns, history, budget, height = 190 }) {
  const drawn = peaks(columns, tokensOf);
  const most = Math.max(0, ...drawn.map(tokensOf));
  const data = [drawn.map(tokensOf), drawn.map((tick) => tick.n_decode), drawn.map(() => budget)];
  return html`<${Plot}
    series=${[bars("prefill"), bars("decode"), steps("limit", [6, 4])]}
    columns=${columns} data=${data} part=${part} history=${history} height=${height}
    scale=${LOGARITHMIC} splits=${() => powers(budget, height)} unit=${(v) => `${count(v)} tok`}
    most=${() => budget * 1.4}
    onDraw=${(u) => part.axis === AXES.ticks && columns.length === ticks.length && drawPauses(u, ticks)}
    label=${`Tokens of each tick: at most ${most} of the budget of ${budget}.`} />`;
}

export function Tokens(props) {
  const { part, columns, budget } = props;
  const legend = [
    ["decode", "decode"],
    ["prefill", "prefill"],
    ["limit", `budget ${count(budget)} tokens`],
  ];
  const most = mostIn(columns);
  const aside =
    most > 1 &&
    `Up to ${count(most)} ticks share a pixel column, which shows the one with the most tokens or the longest time.`;
  const width = part.axis === AXES.time ? "One bar per tick, as wide as it took" : "One bar per tick";
  const note =
    `${width}: decode tokens continue running answers, prefill tokens read new prompts. The axis is logarithmic, ` +
    "so that you can see both one token of a stream and a full budget." +
    (part.axis === AXES.ticks ? " Dotted lines: before this tick the engine had nothing to do." : "");
  return html`<${Figure} title="Tokens per tick" legend=${legend} aside=${aside} note=${note}>
    <${TokenPlot} ...${props} /><//>`;
}

/** How long ticks took, beside the prediction and the ITL target. */
export function TickTime({ history, ticks, part, columns }) {
  const drawn = peaks(columns, (tick) => tick.total_s);
  const longest = Math.max(0, ...drawn.map((tick) => tick.total_s));
  const target = aboutTarget(history.engine, ticks);
  const shown = longest > target.leastS / 4; // else it would squeeze what it is compared with
  const mostMs = 4e3 * longest; // nor may a prediction that was far off
  const data = [
    drawn.map((tick) => tick.total_s * 1e3),
    drawn.map((tick) => tick.predicted_s * 1e3 || null),
    drawn.map((tick) => (shown && target.of(tick) * 1e3) || null),
  ];
  const legend = [
    ["time", "tick"],
    ["predicted", "predicted"],
    ["limit", target.legend],
  ];
  const note =
    "How long each tick took. Every stream gets a token per tick, so this is the gap between its tokens. " +
    `The engine predicts it and cuts prompts into chunks so that it stays below the ITL target. ${target.note}`;
  return html`<${Figure} title="Tick time" legend=${legend} note=${note}
      aside=${html`<${Late} history=${history} target=${target} />`}>
    <${Plot} series=${[bars("time"), steps("predicted"), steps("limit", [6, 4])]}
      columns=${columns} data=${data} part=${part} history=${history} height=${120} withX=${false}
      unit=${(ms) => duration(ms / 1e3)} most=${(max) => roomy(Math.min(max, mostMs), 0.1)}
      label=${`Time of each tick: at most ${duration(longest)}.`} /><//>`;
}

/** How many ticks were longer than the target, why, and the way to the worst. */
function Late({ history, target }) {
  const { summary, worst } = target;
  return html`${summary}${
    worst &&
    html` <button class="link" onClick=${() => goTo(history, worst.tick_id)}>
      Longest: tick ${count(worst.tick_id)}</button> (${duration(worst.total_s)}).`
  }`;
}

export function Queue({ part, columns, history }) {
  const drawn = peaks(columns, (tick) => tick.n_queued).map((tick) => tick.n_queued);
  const most = Math.max(0, ...drawn);
  return html`<${Figure} title="Queue" legend=${[["queue", "waiting requests"]]}
      note="Requests waiting for a slot at the end of each tick. Zero is good; a steady rise means too
        much load.">
    <${Plot} series=${[bars("queue")]} columns=${columns} data=${[drawn]} part=${part}
      history=${history} height=${80} withX=${false} unit=${(v) => (Number.isInteger(v) ? `${v} req` : "")}
      most=${(max) => roomy(max, 2)}
      label=${`Waiting requests: at most ${most}.`} /><//>`;
}

/** Share of the KV cache that running requests and kept prefixes hold. */
export function KvUse({ part, columns, history }) {
  const drawn = peaks(columns, (tick) => tick.n_cells_used);
  const used = drawn.map((tick) => tick.n_cells_used / tick.n_cells);
  const running = drawn.map((tick) => (tick.n_cells_used - tick.n_cells_idle) / tick.n_cells);
  const most = Math.max(0, ...used);
  return html`<${Figure} title="KV cache" legend=${[
    ["decode", "running requests"],
    ["cached", "kept for reuse"],
  ]}
      note="Share of the cache's cells in use. Prefixes of ended requests stay for reuse and give way when
        room is needed.">
    <${Plot} series=${[bars("cached"), bars("decode")]} columns=${columns} data=${[used, running]}
      part=${part} history=${history} height=${102} unit=${percent} most=${(max) => Math.min(1, roomy(max, 0.02))}
      label=${`KV cache in use: at most ${percent(most)}.`} /><//>`;
}
