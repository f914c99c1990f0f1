// One tick in sentences. No DOM.
import { DECODE } from "../feed/history.js";
import { count, duration } from "../parts/format.js";
import { isLate, targetOf, usualOf, whyLate } from "../plots/itl.js";

const PHASES = { plan_s: "planning", forward_s: "the forward pass", sample_s: "sampling", publish_s: "publishing" };
const AROUND = 60; // ticks before and after one that say what is usual
const some = (n, what) => (n === 1 ? `one ${what}` : `${count(n)} ${what}s`);
const were = (n) => (n === 1 ? "was" : "were");
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** Return what a tick did, what it took and whether that was too long. */
export function sentencesOf(history, tick) {
  return [...whatHappened(history, tick), ...whatItTook(history, tick), ...whoWaits(tick)].map(capital);
}

function whatHappened(history, tick) {
  const { n_prefill: nRead, n_accepted: nRight, n_drafted: nGuessed } = tick;
  const { n_finished: nEnded, n_preempted: nLost } = tick;
  const decodes = tick.spans.filter(([, , , kind]) => kind === DECODE).length;
  const chunks = tick.spans.filter(([, , , kind]) => kind !== DECODE);
  const firsts = tick.n_sampled - decodes - nRight;
  const sentences = [];
  if (decodes) {
    const more = nRight ? `, and ${count(nRight)} of ${some(nGuessed, "guessed token")} ${were(nRight)} right` : "";
    sentences.push(`${some(decodes, "stream")} got a token${more}.`);
  }
  if (nRead) {
    const read = `${some(nRead, "prompt token")} of ${some(chunks.length, "request")} ${were(nRead)} read`;
    sentences.push(`${read}${howFar(history, tick, chunks)}.`);
  }
  if (chunks.length && firsts > 0)
    sentences.push(`${some(firsts, "request")} got ${firsts === 1 ? "its" : "their"} first token.`);
  if (tick.n_embedded) {
    const { n_texts: n, n_embedded: tokens } = tick;
    sentences.push(`${some(n, "text")} of ${some(tokens, "token")} ${were(n)} embedded.`);
  }
  if (nEnded) sentences.push(`${some(nEnded, "request")} ended.`);
  if (nLost) {
    const slots = nLost === 1 ? "its slot" : "their slots";
    sentences.push(`${some(nLost, "request")} lost ${slots}, because the KV cells ran out.`);
  }
  return sentences.length ? sentences : ["Nothing was computed."];
}

/** Of a single prompt: how much of it is read now. */
function howFar(history, tick, chunks) {
  if (chunks.length !== 1) return "";
  const [slot, start, length] = chunks[0];
  const request = history.holder(slot, tick);
  if (!request) return "";
  const { n_prompt: n, n_cached: cached } = request;
  if (start + length < n) return `, up to ${count(start + length)} of ${count(n)}`;
  if (start === 0) return ", its whole prompt";
  return `, the ${start > cached ? "last" : "whole rest"} of ${count(n)}`;
}

function whatItTook(history, tick) {
  const [phase, seconds] = Object.entries(PHASES)
    .map(([field, words]) => [words, tick[field]])
    .sort((a, b) => b[1] - a[1])[0];
  const most = seconds ? `, ${duration(seconds)} of it for ${phase}` : "";
  const predicted = tick.predicted_s ? `; the prediction was ${duration(tick.predicted_s)}` : "";
  const sentences = [`The tick took ${duration(tick.total_s)}${most}${predicted}.`];
  const { engine } = history;
  const target = targetOf(engine, tick);
  if (isLate(engine, tick)) {
    const around = history.between(tick.tick_id - AROUND, tick.tick_id + AROUND);
    const { text } = whyLate(engine, tick, usualOf(around, engine.overlaps));
    sentences.push(`That is longer than the ITL target of ${duration(target)}: ${text}.`);
  } else if (tick.target_s) sentences.push(`The ITL target of ${duration(target)} was met.`);
  return sentences;
}

function whoWaits({ n_queued: n, n_queued_tokens: tokens }) {
  if (!n) return [];
  return [`${some(n, "request")} with ${some(tokens, "prompt token")} ${n === 1 ? "waits" : "wait"} for a slot.`];
}
