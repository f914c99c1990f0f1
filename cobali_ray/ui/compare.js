// The same prompt to several streams at once, and what the engine makes of that.
import { Answer } from "./answer.js";
import { isOpen, tokensOf } from "./chat.js";
import { Empty } from "./empty.js";
import { feed } from "./feed.js";
import { count, duration, rate, some } from "./format.js";
import { html, useEffect, useState } from "./preact.js";
import { useStore } from "./store.js";
import { TokenPlot } from "./tickplots.js";

const TICKS = 90;
const WHAT =
  "All of them share the engine's ticks: watch the bars grow by one decode token per stream while none of " +
  "them waits for another. It is one request with n answers; each has a slot and draws of its own.";

/** A card per stream, what they make together, and the ticks in which they were computed. */
export function Compared({ compared }) {
  const [, redraw] = useState(0);
  const { history } = useStore(feed);
  useEffect(() => {
    const stops = (compared?.run.answers ?? []).map((answer) => answer.watch(() => redraw((n) => n + 1)));
    return () => stops.forEach((stop) => stop());
  }, [compared]);
  if (!compared) {
    return html`<${Empty} title="Send one prompt to several streams" text=${WHAT} />`;
  }
  const answers = compared.run.answers.map((answer) => answer.get());
  const told = (i) => history?.requests.get(answers[i].requestId);
  return html`<div class="compared">
    <div class="asked">${compared.prompt}</div>
    <${Together} answers=${answers} told=${told} />
    <${Meanwhile} />
    <div class="grid">${compared.run.answers.map(
      (answer, i) => html`<${Answer} key=${i} answer=${answer} title=${`Stream ${i + 1}`} />`,
    )}</div>
  </div>`;
}

function Together({ answers, told }) {
  const [kind, word] = wordOf(answers);
  const tokens =
    answers[0].usage?.completion_tokens ??
    answers.reduce((sum, answer, i) => sum + tokensOf(answer, told(i)), 0);
  const firstS = Math.min(...answers.map((answer) => answer.sentS));
  const lastS = Math.max(...answers.map((answer) => answer.lastS ?? answer.sentS));
  const seconds = lastS - firstS;
  return html`<p class="together">
    <span class=${`badge ${kind}`}>${word}</span>
    <b>${seconds > 0 ? rate(tokens / seconds, "tok/s") : "–"}</b> together ·${" "}
    ${count(tokens)} tokens in ${duration(seconds)}
  </p>`;
}

function wordOf(answers) {
  const open = answers.filter(isOpen).length;
  const failed = answers.filter(({ status }) => status === "failed").length;
  if (open) return ["wait", `${open} of ${answers.length} streaming`];
  if (failed) return ["bad", `${failed} of ${answers.length} failed`];
  return ["good", `${some(answers.length, "stream")} ended`];
}

function Meanwhile() {
  const { history, status } = useStore(feed);
  if (!history) return null;
  const to = Math.max(history.lastId, TICKS - 1);
  const from = to - TICKS + 1;
  return html`<section class="card meanwhile" aria-label="The engine's last ticks">
    <${TokenPlot} ticks=${history.between(from, to)} from=${from} to=${to}
      budget=${history.engine.token_budget} height=${104} />
    <p class="muted"><i class="swatch decode"></i>decode and <i class="swatch prefill"></i>prefill tokens of
      the last ${TICKS} ticks.
      ${status === "live" ? " Every stream adds one decode token to each." : " The feed is away."}
      ${" "}<a href="#ticks">See everything</a></p>
  </section>`;
}
