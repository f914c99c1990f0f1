// The ITL target in words: what it is, which ticks were longer, and what took their time. No DOM.
import { count, duration, some } from "../parts/format.js";

const OFF_COURSE = 1.3; // so many times its prediction, and the prediction does not explain a tick
const NOTABLE = 0.3; // the share of what is too much that makes a part its cause
const WORDS = { plan: "planning", sample: "sampling", publish: "publishing", rest: "work between the phases" };

const KINDS = {
  off: "No target is set (itl_target_ms: off), so prompts are read in whole chunks, however long that takes.",
  auto:
    "The target is automatic: it weighs the wait of prompts against the gaps of streams, so it is longer while " +
    "more prompts wait or fewer streams run.",
  fixed: "The target is the setting itl_target_ms.",
};

/** What causes are called where they are counted. */
const COUNTED = {
  prefill: "for prompt tokens read beside the streams",
  decode: "for the streams' own tokens",
  slower: "because the forward pass took longer than predicted",
  plan: "for planning",
  sample: "for sampling",
  publish: "for publishing",
  rest: "for the time between the phases",
};

/** What bounds a tick's prefill: its own target, else the engine's latest one. */
export const targetOf = (engine, tick) => tick.target_s || engine.itl_target_s || 0;

/** A tick is too long only if somebody waited for a token, and some target held. */
export function isLate(engine, tick) {
  const target = targetOf(engine, tick);
  return target > 0 && tick.n_decode > 0 && tick.total_s > target;
}

/** Return the median and the largest of some values, null for none. */
export function middleAndMost(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return { middle: sorted[sorted.length >> 1], most: sorted.at(-1) };
}

/** Return what the parts of ticks with streams usually take, `forward` without prompts; null where none is known. */
export function usualOf(ticks, overlaps) {
  const held = ticks.filter((tick) => tick.n_decode > 0).map((tick) => partsOf(tick, overlaps));
  const alone = ticks.filter((tick) => tick.n_decode && !tick.n_prefill).map((tick) => tick.forward_s);
  const usual = (values) => middleAndMost(values)?.middle ?? null;
  const beside = Object.keys(WORDS).map((name) => [name, usual(held.map((parts) => parts[name]))]);
  return { ...Object.fromEntries(beside), forward: usual(alone) };
}

/** What a tick took beside its forward pass; with overlap, publishing is hidden in that. */
function partsOf(tick, overlaps) {
  const { plan_s: plan, forward_s: forward, sample_s: sample, total_s: total } = tick;
  const publish = overlaps ? 0 : tick.publish_s;
  return { plan, sample, publish, rest: total - plan - forward - sample - publish };
}

/** Return which part of a late tick took the time, and that in words; `usual`: what parts take in its neighbours. */
export function whyLate(engine, tick, usual) {
  const { forward_s: forward, total_s: total } = tick;
  const target = targetOf(engine, tick);
  const parts = Object.entries(partsOf(tick, engine.overlaps)).map(([name, s]) => [name, s, s - (usual[name] ?? 0)]);
  const [part, seconds, more] = parts.sort((a, b) => b[2] - a[2])[0];
  const streams = some(tick.n_decode, "stream");
  if (more > NOTABLE * (total - target) && more > forward - (usual.forward ?? 0)) {
    return { cause: part, text: `${WORDS[part]} took ${duration(seconds)}, usually ${duration(usual[part] ?? 0)}` };
  }
  if (tick.predicted_s && total > OFF_COURSE * tick.predicted_s) {
    const predicted = `the prediction for the whole tick was ${duration(tick.predicted_s)}`;
    return { cause: "slower", text: `the forward pass took ${duration(forward)}, and ${predicted}` };
  }
  if (!tick.n_prefill) {
    const text = `the next tokens of ${streams} alone took ${duration(forward)}, and there was no prompt to shorten`;
    return { cause: "decode", text };
  }
  const were = tick.n_prefill === 1 ? "was" : "were";
  const read = `${some(tick.n_prefill, "prompt token")} ${were} read beside ${streams}`;
  if (usual.forward > target) {
    const alone = `the streams' own tokens usually take ${duration(usual.forward)} already`;
    return { cause: "decode", text: `${read}, and ${alone}` };
  }
  return { cause: "prefill", text: `${read}${tick.target_s ? "" : "; no target limited them in this tick"}` };
}

/** Return what there is to say of the target and the ticks in view. */
export function aboutTarget(engine, ticks) {
  const targets = ticks.map((tick) => targetOf(engine, tick)).filter(Boolean);
  const leastS = targets.length ? Math.min(...targets) : engine.itl_target_s || Infinity;
  const mostS = Math.max(...targets, 0);
  const range = mostS > leastS * 1.05 ? `${duration(leastS)} – ${duration(mostS)}` : duration(leastS);
  const { itl_target: kind } = engine;
  const none = kind === "auto" ? "ITL target not needed yet" : "no ITL target";
  const legend = Number.isFinite(leastS) ? `ITL target ${range}` : none;
  return { of: (tick) => targetOf(engine, tick), leastS, legend, note: KINDS[kind], ...lateOf(engine, ticks) };
}

function lateOf(engine, ticks) {
  const held = ticks.filter((tick) => tick.n_decode > 0 && targetOf(engine, tick) > 0);
  if (!held.length) return { summary: "", worst: null };
  const late = held.filter((tick) => isLate(engine, tick));
  const beside = `${some(held.length, "tick")} with streams`;
  if (!late.length) return { summary: `None of ${beside} in view was longer than the ITL target.`, worst: null };
  const usual = usualOf(ticks, engine.overlaps);
  const causes = new Map();
  for (const tick of late) {
    const { cause } = whyLate(engine, tick, usual);
    causes.set(cause, (causes.get(cause) ?? 0) + 1);
  }
  const parts = [...causes].sort((a, b) => b[1] - a[1]).map(([cause, n]) => `${count(n)} ${COUNTED[cause]}`);
  const worst = late.reduce((most, tick) => (tick.total_s > most.total_s ? tick : most));
  const were = late.length === 1 ? "was" : "were";
  const lead = `${count(late.length)} of ${beside} in view ${were} longer than the ITL target`;
  return { summary: `${lead}: ${parts.join(", ")}.`, worst };
}

/** Return the note of the target's tile: what it is worth just now. */
export function targetNow(engine, last, nRunning) {
  const { itl_target: kind } = engine;
  if (kind === "off") return "off: prompts are read as fast as they can be";
  if (!nRunning) return "nothing is running";
  if (kind === "fixed" && last?.target_s > engine.itl_target_s) {
    return `cannot be met: the streams' own tokens take longer, so the aim is gaps of ${duration(last.target_s)}`;
  }
  if (last?.target_s) return "prompts are read in chunks that keep token gaps below it";
  if (!engine.itl_target_s) return "automatic: set once a prompt arrives beside streams";
  return "no prompt is being read beside streams";
}
