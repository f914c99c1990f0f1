// The live ticks: numbers, plots, the record of a tick, the life of a request.
import { engineNow, feed } from "./feed.js";
import { clockTime, count } from "./format.js";
import { Life } from "./life.js";
import { html, useEffect, useState } from "./preact.js";
import { TickRecord } from "./record.js";
import { Requests } from "./requests.js";
import { Stage } from "./stage.js";
import { useStore } from "./store.js";
import { summaryOf } from "./summary.js";
import { Tiles } from "./tiles.js";
import { SIZES, goLive, isLive, pan, pause, resize, shownOf, view, windowOf } from "./window.js";

/** The whole view. */
export function Ticks() {
  const { history, status } = useStore(feed);
  const state = useStore(view);
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((n) => n + 1), 1000); // quantiles age while the engine idles
    return () => clearInterval(timer);
  }, []);
  useEffect(() => goLive(), [history?.engine.incarnation_id]);
  if (!history) return html`<${Nothing} status=${status} />`;
  const nowS = engineNow(history);
  const request = state.request === null ? null : (history.requests.get(state.request) ?? null);
  return html`
    <${Tiles} history=${history} summary=${summaryOf(history, nowS)} />
    ${
      !history.ticks.length
        ? html`<div class="card empty"><h2>The engine has not done anything yet</h2>
          <p>Ticks appear here as soon as it gets a request. <a href="#playground">Ask something in the
          playground</a>, or send requests to <code>/v1/chat/completions</code>.</p></div>`
        : html`<div class="watch">
          <section class="card plots" aria-label="Plots of ticks">
            <${Bar} history=${history} state=${state} />
            <${Stage} history=${history} />
          </section>
          <div class="side">
            <${TickRecord} history=${history} tick=${shownOf(history, state)} pinned=${state.pinned}
              newest=${state.hovered === null && state.pinned === null} />
            <${Life} history=${history} request=${request} nowS=${nowS} />
          </div>
        </div>`
    }
    <${Requests} history=${history} nowS=${nowS} chosen=${state.request} />`;
}

function Nothing({ status }) {
  const words = {
    locked: ["A key is needed", "Enter the server's API key above to see its ticks."],
    absent: ["Nothing to show", "This server does not tell of its ticks."],
    gone: [
      "Waiting for the engine",
      "It is loading its model or being restarted. Ticks appear here by themselves.",
    ],
    lost: ["Waiting for the server", "It does not answer. This page tries again every few seconds."],
  };
  const [title, text] = words[status] ?? ["Connecting", "Asking the engine for its last ticks."];
  return html`<div class="card empty"><h2>${title}</h2><p>${text}</p></div>`;
}

/** Live or paused, how many ticks, and a way back in time. */
function Bar({ history, state }) {
  const { from, to } = windowOf(history, state);
  const live = isLive();
  const ticks = history.between(from, to);
  const [first, last] = [ticks[0], ticks.at(-1)];
  const timeOf = (tick) => clockTime(history.unix(tick.started_s), { milliseconds: false });
  const when = first && `${timeOf(first)} – ${timeOf(last)}`;
  const behind = history.lastId - to;
  const low = Math.min(history.firstId + state.size - 1, Math.max(history.lastId, state.size - 1));
  return html`<div class="bar">
    <button class=${live ? "" : "primary"} aria-pressed=${String(!live)}
      onClick=${() => (live ? pause(history) : goLive())}>
      ${live ? "❚❚ Pause" : "▶ Go live"}</button>
    <label class="grow scroll"><span class="hidden">Scroll back</span>
      <input type="range" min=${low} max=${Math.max(history.lastId, state.size - 1)} value=${to}
        aria-valuetext=${`ticks ${Math.max(from, 0)} to ${to}`}
        onInput=${(event) => pan(history, Number(event.target.value))} /></label>
    <p class="when">${when}${" "}
      ${
        live &&
        state.held !== null &&
        behind > 0 &&
        html`<span class="badge wait">held, ${count(behind)} newer</span>`
      }
      ${!live && html`<span class="badge wait">paused${behind > 0 ? `, ${count(behind)} newer` : ""}</span>`}</p>
    ${
      !ticks.length &&
      html`<p class="forgotten" role="status">These ticks are forgotten.
        <button class="quiet" onClick=${goLive}>Go live</button></p>`
    }
    <label class="sizes">show <select value=${state.size} onChange=${(event) => resize(Number(event.target.value))}>
      ${SIZES.map((size) => html`<option key=${size} value=${size}>${size} ticks</option>`)}</select></label>
  </div>`;
}
