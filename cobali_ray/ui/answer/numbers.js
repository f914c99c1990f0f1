// The numbers under an answer: one line, and on demand all of them, each with where it comes from.
import { count, duration, rate, some } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { countedOf, isOpen, outputOf, paceOf, tokensOf } from "../request/chat.js";

const ENDS = {
  stop: ["good", "stop", "The model ended its answer, or a stop string matched."],
  length: ["wait", "length", "The answer reached max_tokens, or the slot is full."],
  tool_calls: ["good", "tool_calls", "The model called a tool and waits for its result."],
};
const PACE_FROM = {
  server: "Output tokens per second after the first, as the server measured it",
  feed: "Output tokens per second after the first, from the engine's ticks",
  page: "Output tokens per second after the first, as they reached this page",
};

/** TTFT, speed, counts and the finish reason. `request` is the answer's request in the feed, at `nowS`. */
export function Numbers({ answer, request, nowS = null }) {
  const { ttftS, usage, timings, finishReason, status, sentS, lastS } = answer;
  const open = isOpen(answer);
  const served = timings?.ttft_s != null;
  const cached =
    request?.n_cached ?? timings?.cached_tokens ?? countedOf(answer)?.prompt_tokens_details?.cached_tokens;
  const queueS = timings?.queue_s ?? (request?.assigned_s && request.assigned_s - request.arrived_s);
  const prompt = request?.n_prompt ?? usage?.prompt_tokens;
  const reasoned = countedOf(answer)?.completion_tokens_details?.reasoning_tokens;
  const pace = paceOf(answer, request, nowS);
  const least = open || outputOf(answer, request) !== null ? "" : "≥ ";
  const nOutput = tokensOf(answer, request);
  const numbers = [
    [
      "TTFT",
      duration(served ? timings.ttft_s : ttftS),
      served
        ? "Time to first token, as the server measured it: from the request's arrival to the first text sent"
        : "Time to first token, as this page saw it: from sending to the first text",
    ],
    pace && ["speed", rate(pace.perSecond, "tok/s"), PACE_FROM[pace.from]],
    open && [
      "elapsed",
      duration(Math.max(lastS ?? 0, performance.now() / 1000) - sentS),
      "Since sending, by this page's clock",
    ],
    (nOutput > 0 || !least) && [
      "output",
      `${least}${count(nOutput)} tok`,
      open || least
        ? "Output tokens so far: pieces of text that arrived here, or the ticks' count if that is higher"
        : "Output tokens as the server counted them, the end token included",
    ],
    reasoned > 0 && [
      "reasoning",
      `${count(reasoned)} tok`,
      "Output tokens of the reasoning, as the server counted them",
    ],
    usage && [
      "prompt",
      `${count(prompt)} tok`,
      "Tokens of the prompt, template included, as the server counted them",
    ],
    cached > 0 && [
      "cached",
      `${count(cached)} tok`,
      "Prompt tokens that were already in the KV cache, as the server counted them",
    ],
    queueS > 0.001 && [
      "queue",
      duration(queueS),
      "From the request's arrival at the engine to a slot, by the server's clock",
    ],
    !open &&
      timings?.prefill_s > 0 && [
        "prefill",
        duration(timings.prefill_s),
        "From a slot to the first token, by the server's clock",
      ],
  ].filter(Boolean);
  const line = [
    nOutput > 0 && `${least}${some(nOutput, "token")}`,
    pace && rate(pace.perSecond, "tok/s"),
    open && duration(Math.max(lastS ?? 0, performance.now() / 1000) - sentS),
    unusualOf(status, finishReason),
  ].filter(Boolean);
  return html`<details class="measured">
    <summary title="All numbers">${line.join(" · ") || "Numbers"}</summary>
    <dl class="numbers">
      ${numbers.map(
        ([name, value, title]) => html`<div key=${name} title=${title}><dt>${name}</dt><dd>${value}</dd></div>`,
      )}
      <${Ending} status=${status} reason=${finishReason} />
    </dl>
  </details>`;
}

/** How an answer ended, unless it ended by itself. */
const unusualOf = (status, reason) =>
  status === "stopped" || status === "failed"
    ? status
    : reason === "length" && "cut off at its length limit";

function Ending({ status, reason }) {
  const [kind, word, title] =
    status === "stopped"
      ? ["wait", "stopped by you", "The connection was closed; the slot is free at the next tick."]
      : status === "failed"
        ? ["bad", "failed", "See the message above."]
        : (ENDS[reason] ?? []);
  return word
    ? html`<div title=${title}><dt>finish</dt><dd><span class=${`badge ${kind}`}>${word}</span></dd></div>`
    : null;
}
