// All engines of the server side by side: model, place, state, and the tokens of their last ticks.
import { feed, hasTicks, show, shown } from "../feed/feed.js";
import { call } from "../parts/api.js";
import { count } from "../parts/format.js";
import { html, useEffect, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { LOGARITHMIC } from "../plots/plot.js";
import { models } from "../request/models.js";

const EVERY_MS = 3000;
const PATIENCE_MS = 2500; // an engine that is away does not keep the others from being shown
const TICKS = 60;
const [WIDE, HIGH] = [120, 22];

/** The choice of the engine that is shown; nothing where there is one. */
export function Engines() {
  const { engines } = useStore(feed);
  const [told, setTold] = useState({});
  useEffect(() => {
    if (engines.length < 2) return undefined;
    const ask = async () => {
      if (!document.hidden) setTold(await askAll(engines).catch(() => ({})));
    };
    ask();
    const timer = setInterval(ask, EVERY_MS);
    return () => clearInterval(timer);
  }, [engines.join()]);
  if (engines.length < 2) return null;
  return html`<div class="engines-row" role="group" aria-label="Engines">${engines.map(
    (id) => html`<${One} key=${id} id=${id} told=${told[id] ?? {}} shown=${id === shown()} />`,
  )}</div>`;
}

/** Return the state and the last ticks of each engine, as far as it tells. */
async function askAll(engines) {
  const states = (await (await call("health")).json()).engines;
  const stateOf = (id) => states.find((one) => one.engine_id === id);
  const feeds = engines.map(async (engine) => {
    if (!hasTicks(stateOf(engine))) return null;
    const asked = new URLSearchParams({ last: TICKS, engine });
    return (await call(`debug/ticks?${asked}`, { signal: AbortSignal.timeout(PATIENCE_MS) })).json();
  });
  const answers = await Promise.allSettled(feeds);
  return Object.fromEntries(
    engines.map((id, i) => [id, { state: stateOf(id), packet: answers[i].value ?? null }]),
  );
}

function One({ id, told, shown }) {
  const { state, packet } = told;
  const { model, node } = packet?.engine ?? {};
  const well = state?.status === "ready";
  const { all } = useStore(models);
  const name = model ?? all.find(({ status }) => id in (status.engines ?? {}))?.id;
  const busy = well ? `${count(state.n_running)} of ${count(state.n_slots)} slots busy` : awayOf(state?.status);
  return html`<button class="engine-card" aria-pressed=${String(shown)} onClick=${() => show(id)}>
    <span><i class=${`dot ${well ? "good" : "wait"}`}></i><b>${name ?? `engine ${id}`}</b></span>
    <small>engine ${id}${node ? ` on ${node}` : ""} · ${busy}</small>
    ${packet && html`<${Spark} packet=${packet} />`}
  </button>`;
}

const awayOf = (status = "…") => (status === "unloaded" ? "not loaded yet: loads with the first request" : status);

/** Tokens of the last ticks, on the scale of the plots. */
function Spark({ packet: { ticks, engine } }) {
  const most = LOGARITHMIC.fwd(engine.token_budget);
  const step = WIDE / TICKS;
  const path = (of) =>
    ticks
      .map((tick, i) => {
        const high = ((LOGARITHMIC.fwd(of(tick)) / most) * HIGH).toFixed(1);
        return `M${((TICKS - ticks.length + i) * step).toFixed(1)} ${HIGH}v${-high}h${step}v${high}z`;
      })
      .join("");
  return html`<svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" aria-hidden="true">
    <path class="prefill" d=${path((tick) => tick.n_decode + tick.n_prefill)} />
    <path class="decode" d=${path((tick) => tick.n_decode)} />
  </svg>`;
}
