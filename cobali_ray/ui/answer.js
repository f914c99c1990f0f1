// One answer and what it took.
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
};

const NEAR_PX = { page: 200, card: 30 };

/** The text as it grows, then its numbers. `last` of the chat can be asked for again, unless `busy`. */
export function Answer({ answer: store, last = false, busy = false, title = null }) {
  const answer = useStore(store);
  const told = useStore(feed).history?.requests.get(answer.requestId) ?? null;
  const { status, text, error } = answer;
  const words = useRef(null);
  const wasOpen = useRef(false);
  const grows = isOpen(answer) || wasOpen.current; // the numbers come with the end
  const scroller = () => (title ? words.current : document.scrollingElement);
  useEndInSight(scroller, title ? NEAR_PX.card : NEAR_PX.page, grows && (title || last));
  useLayoutEffect(() => void (wasOpen.current = isOpen(answer)));
  return html`<article class=${`answer ${status}`} aria-busy=${String(isOpen(answer))}>
    ${title && html`<h2>${title}</h2>`}
    ${status === "waiting" && html`<p class="waiting">waiting for the first token …</p>`}
    ${
      text &&
      html`<p class="text" ref=${words} tabindex=${title ? "0" : null} role=${title ? "region" : null}
      aria-label=${title ? `Answer of ${title}` : null}>
      ${text}${status === "streaming" && html`<i class="caret"></i>`}</p>`
    }
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

/** TTFT, speed, counts and the finish reason. */
function Numbers({ answer, told }) {
  const { nAnswers, ttftS, usage, timings, finishReason, status } = answer;
  const cached = told ? told.n_cached : countedOf(answer)?.prompt_tokens_details?.cached_tokens;
  const queueS = nAnswers === 1 ? timings?.queue_s : told?.assigned_s && told.assigned_s - told.arrived_s;
  const prompt = told ? told.n_prompt : usage?.prompt_tokens;
  const least = isOpen(answer) || outputOf(answer, told) !== null ? "" : "≥ ";
  const numbers = [
    ["TTFT", duration(ttftS), "Time to first token: from sending to the first text, as this page saw it"],
    ["speed", rate(speedOf(answer, told), "tok/s"), "Output tokens per second after the first"],
    ["output", `${least}${count(tokensOf(answer, told))} tok`, "Output tokens, the end token included"],
  ];
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
