// One answer: its reasoning, its text, its tool calls, and what they took.
import { countedOf, isOpen, outputOf, speedOf, tokensOf } from "./chat.js";
import { feed } from "./feed.js";
import { count, duration, rate } from "./format.js";
import { retry } from "./play.js";
import { html, useLayoutEffect, useRef } from "./preact.js";
import { useEndInSight } from "./scroll.js";
import { useStore } from "./store.js";

const ENDS = {
  stop: ["good", "stop", "The model ended its answer, or a stop string was found."],
  length: ["wait", "length", "The answer reached max_tokens, or the slot is full."],
  tool_calls: ["good", "tool_calls", "The model called a tool. This page offers none, so nobody runs it."],
};

const NEAR_PX = { page: 200, card: 30 };
const TAIL_CHARS = 200; // more than a line of them

/** What the model says, then its numbers. `last` of the chat can be asked for again, unless `busy`. */
export function Answer({ answer: store, last = false, busy = false, title = null }) {
  const answer = useStore(store);
  const told = useStore(feed).history?.requests.get(answer.requestId) ?? null;
  const { status, part, reasoning, text, calls, error } = answer;
  const words = useRef(null);
  const wasOpen = useRef(false);
  const grows = isOpen(answer) || wasOpen.current; // the numbers come with the end
  const scroller = () => (title ? words.current : document.scrollingElement);
  useEndInSight(scroller, title ? NEAR_PX.card : NEAR_PX.page, grows && (title || last));
  useLayoutEffect(() => void (wasOpen.current = isOpen(answer)));
  const caretOf = (name) => status === "streaming" && part === name && html`<i class="caret"></i>`;
  const unanswered = reasoning && !text && !calls.length && !isOpen(answer) && !error;
  return html`<article class=${`answer ${status}`} aria-busy=${String(isOpen(answer))}>
    ${title && html`<h2>${title}</h2>`}
    ${status === "waiting" && html`<p class="waiting">waiting for the first token …</p>`}
    ${reasoning && html`<${Reasoning} answer=${answer} title=${title} caret=${caretOf("reasoning")} />`}
    ${unanswered && html`<p class="waiting">It ended before the answer began.</p>`}
    ${
      text &&
      html`<p class="text" ref=${words} tabindex=${title ? "0" : null} role=${title ? "region" : null}
      aria-label=${title ? `Answer of ${title}` : null}>
      ${text}${caretOf("text")}</p>`
    }
    ${calls.length > 0 && html`<${Calls} calls=${calls} caret=${caretOf("calls")} />`}
    ${
      error &&
      html`<p class="failure" role="alert"><b>${error.code ?? "Failed"}.</b> ${error.message}
      ${error.retryAfterS && ` Try again in ${error.retryAfterS} s.`}</p>`
    }
    <footer>
      <${Numbers} answer=${answer} told=${told} />
      ${last && !isOpen(answer) && html`<button class="quiet" disabled=${busy} onClick=${retry}>Ask again</button>`}
    </footer>
  </article>`;
}

/** Folded, so that nothing jumps when the answer begins. While it grows, its last words stand in its line. */
function Reasoning({ answer, title, caret }) {
  const { reasoning, reasonedS } = answer;
  const words = useRef(null);
  const tail = reasoning.slice(-TAIL_CHARS);
  useEndInSight(() => words.current, NEAR_PX.card, isOpen(answer));
  return html`<details class="reasoning">
    <summary>Reasoning${
      caret
        ? html`<span class="tail" aria-hidden="true"><span>${tail}</span></span>${caret}`
        : reasonedS > 0 && html`<span class="took">${duration(reasonedS)}</span>`
    }</summary>
    <p ref=${words} tabindex=${title ? "0" : null} role=${title ? "region" : null}
      aria-label=${title ? `Reasoning of ${title}` : null}>${reasoning}</p>
  </details>`;
}

function Calls({ calls, caret }) {
  return html`<ul class="calls" aria-label="Tool calls">
    ${calls.map(
      ({ name, args }, i) =>
        html`<li key=${i}><code>${name}(${args}${i === calls.length - 1 && caret ? caret : ")"}</code></li>`,
    )}
  </ul>`;
}

/** TTFT, speed, counts and the finish reason. */
function Numbers({ answer, told }) {
  const { nAnswers, ttftS, usage, timings, finishReason, status } = answer;
  const cached = told ? told.n_cached : countedOf(answer)?.prompt_tokens_details?.cached_tokens;
  const queueS = nAnswers === 1 ? timings?.queue_s : told?.assigned_s && told.assigned_s - told.arrived_s;
  const prompt = told ? told.n_prompt : usage?.prompt_tokens;
  const reasoned = countedOf(answer)?.completion_tokens_details?.reasoning_tokens;
  const least = isOpen(answer) || outputOf(answer, told) !== null ? "" : "≥ ";
  const numbers = [
    ["TTFT", duration(ttftS), "Time to first token: from sending to the first words that this page saw"],
    ["speed", rate(speedOf(answer, told), "tok/s"), "Output tokens per second after the first"],
    ["output", `${least}${count(tokensOf(answer, told))} tok`, "Output tokens, the end token included"],
  ];
  if (reasoned > 0) numbers.push(["reasoning", `${count(reasoned)} tok`, "Output tokens of the reasoning"]);
  if (usage) numbers.push(["prompt", `${count(prompt)} tok`, "Tokens of the prompt, template included"]);
  if (cached > 0) numbers.push(["cached", `${count(cached)} tok`, "Prompt tokens that a slot already held"]);
  if (queueS > 0.001) numbers.push(["queue", duration(queueS), "From arrival to a slot"]);
  return html`<dl class="numbers">
    ${numbers.map(
      ([name, value, title]) => html`<div key=${name} title=${title}><dt>${name}</dt><dd>${value}</dd></div>`,
    )}
    <${Ending} status=${status} reason=${finishReason} />
  </dl>`;
}

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
