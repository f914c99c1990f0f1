// The record of one tick, to read.
import { DECODE } from "../feed/history.js";
import { clockTime, count, duration, percent, shortId, some } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { middleAndMost } from "../plots/itl.js";
import { follow } from "../plots/window.js";
import { sentencesOf } from "./sentences.js";

const PHASES = [
  ["plan", "plan_s"],
  ["forward", "forward_s"],
  ["sample", "sample_s"],
  ["publish", "publish_s"],
];
const MOST_SPANS = 12;

/** Everything that the engine noted of a tick. */
export function TickRecord({ history, tick, pinned, newest }) {
  const card = useRef(null);
  useEffect(() => {
    if (pinned !== null) card.current.parentElement.scrollTo(0, 0); // a request's life may have scrolled it
  }, [pinned]);
  if (!tick) {
    return html`<section ref=${card} class="card record" aria-label="Record of a tick">
      <header><h2>Tick ${count(pinned)}</h2></header><p class="muted">This tick is no longer stored.</p></section>`;
  }
  const gaps = middleAndMost(tick.gaps_s);
  const rows = [
    [
      "Tokens",
      `${count(tick.n_decode)} decode, ${count(tick.n_prefill)} prefill`,
      `of a budget of ${count(history.engine.token_budget)}`,
    ],
    ["Sampled", some(tick.n_sampled, "token"), "tokens that streams got"],
    [
      "Slots",
      `${count(tick.n_generating)} generating, ${count(tick.n_prefilling)} prefilling`,
      `${count(tick.n_idle)} idle`,
    ],
    ["Queue", some(tick.n_queued, "request"), tick.n_queued ? `${count(tick.n_queued_tokens)} prompt tokens` : ""],
    [
      "KV cells",
      `${count(tick.n_cells_used)} used (${percent(tick.n_cells_used / tick.n_cells)})`,
      `${count(tick.n_cells_idle)} of them kept prefixes`,
    ],
    [
      "Predicted",
      tick.predicted_s ? duration(tick.predicted_s) : "–",
      tick.target_s ? `ITL target ${duration(tick.target_s)}` : "not bounded by the ITL target",
    ],
    ["Token gaps", gaps ? `${duration(gaps.middle)} median` : "–", gaps ? `${duration(gaps.most)} longest` : ""],
    ["Ended", some(tick.n_finished, "request"), tick.n_preempted ? `${count(tick.n_preempted)} preempted` : ""],
    ["Graphs reused", count(tick.n_reused_graphs), ""],
  ];
  return html`<section ref=${card} class="card record" aria-label="Record of a tick">
    <header><h2>Tick ${count(tick.tick_id)}</h2>
      <p class="muted">${newest ? "the newest · " : ""}${clockTime(history.unix(tick.started_s))}</p></header>
    <p class="told">${sentencesOf(history, tick).join(" ")}</p>
    <${Phases} tick=${tick} />
    <table><tbody>${rows.map(
      ([name, value, more]) => html`<tr key=${name}><th scope="row">${name}</th>
      <td>${value}${more && html` <span class="muted">${more}</span>`}</td></tr>`,
    )}</tbody></table>
    <${Spans} history=${history} tick=${tick} />
  </section>`;
}

function Phases({ tick }) {
  return html`<div class="phases">
    <p><b>${duration(tick.total_s)}</b> <span class="muted">in all:</span>
      ${PHASES.map(
        ([name, field]) =>
          html` <span key=${name}><i class=${`swatch ${name}`}></i>${name} ${duration(tick[field])}</span>`,
      )}</p>
    <div class="stack" aria-hidden="true">${PHASES.map(
      ([name, field]) =>
        html`<i key=${name} class=${name} style=${{ flexGrow: tick[field] / tick.total_s || 0 }}></i>`,
    )}</div>
  </div>`;
}

/** Who computed what; of many, the first ones until all are shown. */
function Spans({ history, tick }) {
  const [all, setAll] = useState(false);
  const spans = [...tick.spans].sort((a, b) => a[3] - b[3] || a[0] - b[0]); // prefill is what differs
  const shown = all ? spans : spans.slice(0, MOST_SPANS);
  return html`<h3>Who computed</h3>
    <ul class="spans">${shown.map(([slot, start, length, kind]) => {
      const request = history.holder(slot, tick);
      const what =
        kind === DECODE
          ? `token ${count(start + 1)}`
          : `prompt tokens ${count(start + 1)}–${count(start + length)}`;
      return html`<li key=${slot}><i class=${`swatch ${kind === DECODE ? "decode" : "prefill"}`}></i>
        <span>slot ${slot}</span>
        ${
          request
            ? html`<button class="link" title=${request.request_id}
                onClick=${() => follow(request.request_id)}>${shortId(request.request_id)}</button>`
            : html`<span>–</span>`
        }
        <span class="muted">${what}${kind === DECODE || !request ? "" : ` of ${count(request.n_prompt)}`}</span>
      </li>`;
    })}</ul>
    ${
      spans.length > MOST_SPANS &&
      html`<button class="quiet" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${
        all ? "Show fewer" : `Show all ${count(spans.length)}`
      }</button>`
    }`;
}
