// All engines of the server side by side: model, place, state, devices, and the tokens of their last ticks.
import { feed, hasTicks, show, shownEngine } from "../feed/feed.js";
import { TickBars } from "../feed/strip.js";
import { call } from "../parts/api.js";
import { bytes, count, percent } from "../parts/format.js";
import { html, useEffect, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { models } from "../request/models.js";

const EVERY_MS = 3000;
const PATIENCE_MS = 2500; // an engine that is away does not keep the others from being shown
const TICKS = 60;

/** The choice of the engine that is shown; of a single engine its devices and what is wrong, if there are any. */
export function Engines() {
  const { engines } = useStore(feed);
  const [reports, setReports] = useState({});
  const only = reports[engines[0]]?.state;
  const some = engines.length > 1 || only?.devices?.length > 0 || only?.detail;
  const ask = async () => {
    if (!document.hidden && engines.length) setReports(await askAll(engines).catch(() => ({})));
  };
  useEffect(() => void ask(), [engines.join()]);
  useEffect(() => {
    const timer = some && setInterval(ask, EVERY_MS);
    return () => clearInterval(timer);
  }, [engines.join(), some]);
  if (!some) return null;
  return html`<div class="engines-row" role="group" aria-label="Engines">${engines.map(
    (id) => html`<${EngineCard} key=${id} id=${id} report=${reports[id] ?? {}} shown=${id === shownEngine()} />`,
  )}</div>`;
}

/** Return the state and the last ticks of each engine, as far as it answers. */
async function askAll(engines) {
  const states = (await (await call("health")).json()).engines;
  const stateOf = (id) => states.find((state) => state.engine_id === id);
  const feeds = engines.map(async (engine) => {
    if (!hasTicks(stateOf(engine))) return null;
    const params = new URLSearchParams({ last: TICKS, engine });
    return (await call(`debug/ticks?${params}`, { signal: AbortSignal.timeout(PATIENCE_MS) })).json();
  });
  const answers = await Promise.allSettled(feeds);
  return Object.fromEntries(
    engines.map((id, i) => [id, { state: stateOf(id), packet: answers[i].value ?? null }]),
  );
}

function EngineCard({ id, report, shown }) {
  const { state, packet } = report;
  const { model, node } = packet?.engine ?? {};
  const well = state?.status === "ready";
  const { all } = useStore(models);
  const name = model ?? all.find(({ status }) => id in (status.engines ?? {}))?.id;
  const busy = well ? `${count(state.n_running)} of ${count(state.n_slots)} slots busy` : awayOf(state?.status);
  return html`<button class="engine-card" aria-pressed=${String(shown)} onClick=${() => show(id)}>
    <span><i class=${`dot ${well ? "good" : "wait"}`}></i><b>${name ?? `engine ${id}`}</b></span>
    <small>engine ${id}${node ? ` on ${node}` : ""} · ${busy}</small>
    ${state?.detail && html`<small>${state.detail}</small>`}
    ${(state?.devices ?? []).map((device) => html`<${Device} key=${device.name} ...${device} />`)}
    ${
      packet &&
      html`<${TickBars} ticks=${packet.ticks} n=${TICKS} most=${packet.engine.token_budget} aria-hidden="true" />`
    }
  </button>`;
}

/** A device with its memory, and how busy it was in the last seconds, where that is known. */
function Device({ name, there, free_bytes: free, total_bytes: total, busy_share: busy }) {
  const memory = `${bytes(total - free)} of ${bytes(total)}`;
  const use = busy === null ? "" : ` · ${percent(busy)} busy`;
  return html`<small class="engine-device">${name} · ${there ? memory + use : "missing: it does not answer"}
    <i style=${`width: ${there ? (100 * (total - free)) / total : 0}%`}></i></small>`;
}

const awayOf = (status = "…") => (status === "unloaded" ? "not loaded yet: loads with the first request" : status);
