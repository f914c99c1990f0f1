// The life of one request, from arrival to end.
import { DECODE } from "../feed/history.js";
import { begunS, cachedFrom } from "../feed/lives.js";
import { clockTime, count, duration, rate, shortId } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { html, useEffect, useRef } from "../parts/preact.js";
import { follow, showTime } from "../plots/window.js";

const KINDS = { queued: "wait", prefilling: "prefill", generating: "decode", ended: "plain" };

/** What became of a request; without one, how to choose one. */
export function Life({ history, request, nowS }) {
  const card = useRef(null);
  const id = request?.request_id ?? null;
  const shown = useRef(id);
  useEffect(() => {
    if (id !== null && id !== shown.current) bringUp(card.current);
    shown.current = id;
  }, [id]);
  if (!request) {
    return html`<section class="card life" aria-label="Life of a request"><header><h2>A request's life</h2></header>
      <p class="muted">Click a lane or a row below to follow a request from its arrival to its end.</p></section>`;
  }
  const parts = partsOf(request, nowS);
  const endS = request.ended_s ?? nowS;
  const ended = request.state === "ended";
  const hits = request.n_cached
    ? `${count(request.n_cached)} of them were in ${cachedFrom(request)}`
    : "none in the cache";
  const rows = [
    ["Arrived", clockTime(history.unix(begunS(request))), ""],
    ...parts.map(({ name, title, seconds, text }, i) => [
      title,
      `${request.unseen && i === parts.length - 1 ? "≥ " : ""}${duration(seconds)}`,
      text,
      name,
    ]),
    [
      ended ? "Ended" : "So far",
      request.unseen ? "–" : duration(endS - begunS(request)),
      ended ? `${request.unseen ? "last heard of " : ""}at ${clockTime(history.unix(endS))}` : "since arrival",
    ],
    ["Prompt", `${count(request.n_prompt)} tokens`, hits],
    ["Output", `${request.unseen ? "≥ " : ""}${count(request.n_output)} tokens`, speedOf(request, endS)],
  ];
  if (request.tenant) rows.push(["Tenant", request.tenant, `class ${request.priority}`]);
  if (request.attempt)
    rows.push(["Continued", `after ${count(request.n_said)} tokens`, "that an engine sent before it died"]);
  if (request.n_preempted)
    rows.push(["Preempted", `${count(request.n_preempted)} times`, "its tokens were brought back or computed again"]);
  return html`<section ref=${card} class="card life" aria-label="Life of a request">
    <header><h2 tabindex="-1">Request <code title=${request.request_id}>${shortId(request.request_id)}</code></h2>
      <span class=${`badge ${kindOf(request)}`}>${endOf(request)}</span>
      <button class="quiet icon" aria-label="Close this request" onClick=${() => follow(null)}>
      <${Icon} name="close" /></button></header>
    <div class="stack" aria-hidden="true">
      ${parts.map(
        ({ name, seconds }) => html`<i key=${name} class=${name} style=${{ flexGrow: 1e3 * seconds }}></i>`,
      )}
    </div>
    <table><tbody>${rows.map(
      ([title, value, note, swatch]) => html`<tr key=${title}>
        <th scope="row">${swatch && html`<i class=${`swatch ${swatch}`}></i>`}${title}</th>
        <td>${value} <span class="muted">${note}</span></td></tr>`,
    )}</tbody></table>
    <${Progress} history=${history} request=${request} endS=${endS} />
    <button onClick=${() => showTime(history, request.arrived_s, endS)}>Show its ticks</button>
    ${
      request.prompt &&
      html`<h3>Prompt</h3>
      <pre class="prompt" tabindex="0" aria-label="Prompt">${request.prompt}</pre>`
    }
  </section>`;
}

/** Scroll to a card and focus its title, unless the focus is on a slider, where keys move along the plots. */
function bringUp(card) {
  card.scrollIntoView({ block: "nearest" });
  if (!document.activeElement?.closest("[role=slider]")) card.querySelector("h2").focus({ preventScroll: true });
}

/** The phases of a request: how long each took, as far as it came. */
function partsOf(request, nowS) {
  const { arrived_s: arrived, assigned_s: assigned, first_token_s: first, ended_s: ended } = request;
  const until = (moment) => moment ?? ended ?? nowS;
  const parts = [
    ["intake", "Intake", request.received_s, arrived, "HTTP arrival to the engine: body, template, tokeniser"],
    ["queue", "Queue", arrived, until(assigned), "arrival at the engine to a slot"],
    ["prefill", "Prefill", assigned, until(first), "slot to the first token"],
    ["decode", "Decode", first, until(null), "first token to the end"],
  ];
  return parts
    .filter(([, , fromS]) => fromS != null)
    .map(([name, title, fromS, untilS, text]) => ({ name, title, seconds: untilS - fromS, text }));
}

export function endOf({ state, finish_reason: reason, error, unseen }) {
  if (state !== "ended") return state;
  if (unseen) return "end not seen";
  if (!error) return reason ?? "ended";
  if (error === "RequestCancelledError") return "cancelled";
  return error
    .replace(/Error$/, "")
    .replace(/(?<=[a-z])[A-Z]/g, (c) => ` ${c.toLowerCase()}`)
    .toLowerCase();
}

/** The colour for how a request ended, or where it is. */
export const kindOf = ({ state, error }) =>
  error && error !== "RequestCancelledError" ? "bad" : KINDS[state];

function speedOf({ n_output: nOutput, n_said: nBefore, first_token_s: first }, endS) {
  const n = nOutput - (nBefore ?? 0); // what another engine computed is not this one's
  return n > 1 && first !== null && endS > first
    ? `${rate((n - 1) / (endS - first), "tok/s")} after the first`
    : "";
}

const [WIDE, HIGH] = [300, 84];

/** Tokens in the cache over time: cached ones at once, the prompt in chunks, then one per tick. */
function Progress({ history, request, endS }) {
  const points = [];
  for (const tick of history.ticks) {
    for (const [slot, sinceS, untilS] of request.stays) {
      if (tick.started_s + tick.total_s < sinceS || tick.started_s > (untilS ?? endS)) continue;
      const span = tick.spans.find(([id]) => id === slot);
      if (span && history.holder(slot, tick) === request)
        points.push({ atS: tick.started_s + tick.total_s, was: span[1], n: span[1] + span[2], kind: span[3] });
    }
  }
  if (points.length < 2) return html`<p class="muted">Its ticks are not in the page's memory.</p>`;
  const lengthS = Math.max(endS - request.arrived_s, 1e-6);
  const most = Math.max(request.n_prompt + request.n_output, ...points.map((point) => point.n));
  const x = (atS) => Math.min(WIDE, ((atS - request.arrived_s) / lengthS) * WIDE).toFixed(1);
  const y = (n) => (HIGH - (n / most) * (HIGH - 2)).toFixed(1);
  const path = (some, fromS, fromN) => {
    if (!some.length) return "";
    const [{ atS: firstS, was }] = some;
    const begin = `M${x(was === fromN ? fromS : firstS)} ${y(was)}`; // else the ticks before are not known
    return some.reduce((d, { atS, n }) => `${d} H${x(atS)} V${y(n)}`, begin);
  };
  const read = points.filter((point) => point.kind !== DECODE);
  const decoded = points.filter((point) => point.kind === DECODE);
  const lastRead = read.at(-1) ?? { atS: request.arrived_s, n: request.n_cached };
  return html`<figure class="progress">
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img"
        aria-label=${`${count(points.length)} ticks computed ${count(points.at(-1).n)} tokens of this request.`}>
      <line class="grid" x1="0" x2=${WIDE} y1=${y(request.n_prompt)} y2=${y(request.n_prompt)} />
      <path class="prefill" d=${path(read, request.assigned_s ?? request.arrived_s, request.n_cached)} />
      <path class="decode" d=${path(decoded, lastRead.atS, lastRead.n)} />
    </svg>
    <figcaption>0 to ${count(most)} tokens in the cache, over ${duration(lengthS)}. The line marks the prompt's
      end.</figcaption>
  </figure>`;
}
