// Requests as a table: those inside, then those that ended last.
import { count, duration, shortId } from "./format.js";
import { endOf, kindOf } from "./life.js";
import { begunS, cachedFrom } from "./lives.js";
import { html } from "./preact.js";
import { follow } from "./window.js";

const MOST = 40;
const ORDER = { generating: 0, prefilling: 1, queued: 2, ended: 3 };

/** The table; a row's button follows its request. */
export function Requests({ history, nowS, chosen }) {
  const all = [...history.requests.values()].sort(
    (a, b) => ORDER[a.state] - ORDER[b.state] || (b.ended_s ?? b.arrived_s) - (a.ended_s ?? a.arrived_s),
  );
  if (!all.length) return null;
  return html`<section class="card requests" aria-label="Requests">
    <header><h2>Requests</h2>
      <p class="muted">Those inside, then those that ended last. Choose one to see its life.</p></header>
    <div class="scroller" tabindex="0" role="region" aria-label="Table of requests">
      <table><thead><tr><th scope="col">request</th><th scope="col">state</th><th scope="col">slot</th>
        <th scope="col">prompt, tok</th><th scope="col">cached, tok</th>
        <th scope="col">cached in</th><th scope="col">output, tok</th>
        <th scope="col">queue</th><th scope="col">TTFT</th><th scope="col">total</th></tr></thead>
      <tbody>${all.slice(0, MOST).map(
        (request) => html`<${Row} key=${request.request_id} request=${request} nowS=${nowS}
          chosen=${chosen === request.request_id} />`,
      )}</tbody></table>
    </div>
    ${all.length > MOST && html`<p class="muted">and ${count(all.length - MOST)} more</p>`}
  </section>`;
}

function Row({ request, nowS, chosen }) {
  const {
    request_id: id,
    arrived_s: arrived,
    assigned_s: assigned,
    first_token_s: first,
    ended_s: ended,
    unseen,
  } = request;
  const begun = begunS(request);
  return html`<tr class=${chosen ? "chosen" : ""}>
    <th scope="row"><button class="link" aria-pressed=${String(chosen)} title=${id}
      onClick=${() => follow(chosen ? null : id)}>${shortId(id)}</button></th>
    <td><span class=${`badge ${kindOf(request)}`}>${endOf(request)}</span></td>
    <td>${request.slot_id ?? "–"}</td>
    <td>${count(request.n_prompt)}</td>
    <td>${count(request.n_cached)}</td>
    <td>${cachedFrom(request) || "–"}</td>
    <td>${unseen ? "≥ " : ""}${count(request.n_output)}</td>
    <td>${unseen && assigned === null ? "–" : duration((assigned ?? ended ?? nowS) - arrived)}</td>
    <td>${first === null ? "–" : duration(first - begun)}</td>
    <td>${unseen ? "–" : duration((ended ?? nowS) - begun)}</td>
  </tr>`;
}
