// One answer and what it took.
import { isOpen, speedOf, tokensOf } from "./chat.js";
import { count, duration, rate } from "./format.js";
import { retry } from "./play.js";
import { html, useLayoutEffect, useRef } from "./preact.js";
import { useStore } from "./store.js";

const ENDS = {
  stop: ["good", "stop", "The model ended its answer, or a stop string was found."],
  length: ["wait", "length", "The answer reached max_tokens, or the slot is full."],
};

/** The text as it grows, then its numbers. `last` can be asked for again; `told` is what the feed knows of it. */
export function Answer({ answer: store, last = false, title = null, told = null }) {
  const answer = useStore(store);
  const { status, text, error } = answer;
  const words = useRef(null);
  useLayoutEffect(() => {
    if (title && status === "streaming") words.current.scrollTop = words.current.scrollHeight;
  });
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
      ${last && !isOpen(answer) && html`<button class="quiet" onClick=${retry}>Ask again</button>`}
    </footer>
  </article>`;
}

/** TTFT, speed, counts and the finish reason. */
function Numbers({ answer, told }) {
  const { ttftS, usage, timings, finishReason, status } = answer;
  const cached = told ? told.n_cached : usage?.prompt_tokens_details?.cached_tokens;
  const prompt = told ? told.n_prompt : usage?.prompt_tokens;
  const numbers = [
    ["TTFT", duration(ttftS), "Time to first token: from sending to the first text, as this page saw it"],
    ["speed", rate(speedOf(answer, told), "tok/s"), "Output tokens per second after the first"],
    ["output", `${count(tokensOf(answer, told))} tok`, "Output tokens, the end token included"],
  ];
  if (usage) numbers.push(["prompt", `${count(prompt)} tok`, "Tokens of the prompt, template included"]);
  if (cached > 0) numbers.push(["cached", `${count(cached)} tok`, "Prompt tokens that a slot already held"]);
  if (timings?.queue_s > 0.001) numbers.push(["queue", duration(timings.queue_s), "From arrival to a slot"]);
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
