// All requests the page knows as a table: searched, sorted, paged. A row's button follows its request.
import { cachedFrom } from "../feed/lives.js";
import { count, duration, shortId, some } from "../parts/format.js";
import { html, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { follow } from "../plots/window.js";
import { models, nServed } from "../request/models.js";
import { endOf, kindOf } from "./life.js";
import { KEYS, PAGE, matching, sorted } from "./table.js";

/** Of each column the key that it sorts by, its title, and "word" where text is aligned left. */
const COLUMNS = [
  ["request", "request"],
  ["state", "state", "word"],
  ["model", "model", "word"],
  ["tenant", "tenant", "word"],
  ["slot", "slot"],
  ["prompt", "prompt, tok"],
  ["cached", "cached, tok"],
  [null, "cached in"],
  ["output", "output, tok"],
  ["queue", "queue"],
  ["TTFT", "TTFT"],
  ["total", "total"],
];

export function Requests({ history, nowS, chosen }) {
  const [search, setSearch] = useState("");
  const [{ by, down }, setOrder] = useState({ by: null, down: false });
  const [chosenPage, setPage] = useState(0);
  useStore(models);
  const requests = [...history.requests.values()];
  if (!requests.length) return null;
  const shown = { model: nServed() > 1, tenant: requests.some(({ tenant }) => tenant) };
  const columns = COLUMNS.filter(([key]) => shown[key] ?? true);
  const all = sorted(matching(requests, search), by, down, nowS);
  const last = Math.max(0, Math.ceil(all.length / PAGE) - 1);
  const page = Math.min(chosenPage, last);
  const sort = (key) => {
    setPage(0);
    setOrder(by !== key ? { by: key, down: true } : down ? { by: key, down: false } : { by: null, down: false });
  };
  const look = (event) => {
    setPage(0);
    setSearch(event.target.value);
  };
  return html`<section class="card requests" aria-label="Requests">
    <header><h2>Requests</h2>
      <p class="muted grow" role="status">${
        search
          ? `${count(all.length)} of ${some(requests.length, "request")} match`
          : `${some(requests.length, "request")} known: running first, then the latest to end`
      }</p>
      <label class="search"><span class="hidden">Search requests</span>
        <input type="search" value=${search} onInput=${look} placeholder="id, model, tenant, slot2 …" /></label>
    </header>
    <div class="scroller" tabindex="0" role="region" aria-label="Table of requests">
      <table><thead><tr>${columns.map(
        ([key, text, kind]) =>
          html`<${Head} key=${text} name=${key} text=${text} kind=${kind} by=${by} down=${down} sort=${sort} />`,
      )}</tr></thead>
      <tbody>${all
        .slice(page * PAGE, (page + 1) * PAGE)
        .map(
          (request) => html`<${Row} key=${request.request_id} request=${request} nowS=${nowS} shown=${shown}
          chosen=${chosen === request.request_id} />`,
        )}</tbody></table>
      ${!all.length && html`<p class="muted">No request matches.</p>`}
    </div>
    ${last > 0 && html`<${Pages} page=${page} last=${last} n=${all.length} turn=${setPage} />`}
  </section>`;
}

/** A column's name; a click sorts by it: the most first, then the least, then as it was. */
function Head({ name, text, kind, by, down, sort }) {
  if (!name) return html`<th scope="col">${text}</th>`;
  const order = by !== name ? "none" : down ? "descending" : "ascending";
  const sign = { none: "", descending: " ↓", ascending: " ↑" }[order];
  return html`<th scope="col" class=${kind} aria-sort=${order}>
    <button class="quiet" onClick=${() => sort(name)}>${text}${sign}</button></th>`;
}

function Pages({ page, last, n, turn }) {
  const from = page * PAGE;
  return html`<nav class="pages" aria-label="Pages of requests">
    <button disabled=${page === 0} onClick=${() => turn(page - 1)}>Previous</button>
    <span class="muted">${count(from + 1)}–${count(Math.min(from + PAGE, n))} of ${count(n)}</span>
    <button disabled=${page === last} onClick=${() => turn(page + 1)}>Next</button>
  </nav>`;
}

function Row({ request, nowS, chosen, shown }) {
  const { request_id: id, unseen } = request;
  const time = (key) => {
    const value = KEYS[key](request, nowS);
    return value === null ? "–" : duration(value);
  };
  return html`<tr class=${chosen ? "chosen" : ""}>
    <th scope="row"><button class="link" aria-pressed=${String(chosen)} title=${id}
      onClick=${() => follow(chosen ? null : id)}>${shortId(id)}</button></th>
    <td class="word"><span class=${`badge ${kindOf(request)}`}>${endOf(request)}</span></td>
    ${shown.model && html`<td class="word">${request.model || "–"}</td>`}
    ${shown.tenant && html`<td class="word">${request.tenant || "–"}</td>`}
    <td>${request.slot_id ?? "–"}</td>
    <td>${count(request.n_prompt)}</td>
    <td>${count(request.n_cached)}</td>
    <td>${cachedFrom(request) || "–"}</td>
    <td>${unseen ? "≥ " : ""}${count(request.n_output)}</td>
    <td>${time("queue")}</td>
    <td>${time("TTFT")}</td>
    <td>${time("total")}</td>
  </tr>`;
}
