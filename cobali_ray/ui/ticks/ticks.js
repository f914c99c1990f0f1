// The live ticks: numbers, plots, the record of a tick, the life of a request.
import { engineNow, feed } from "../feed/feed.js";
import { Icon } from "../parts/icons.js";
import { html, useEffect } from "../parts/preact.js";
import { useRedraw, useStore, useStoreEvery } from "../parts/store.js";
import { goLive, shownOf, view } from "../plots/window.js";
import { Life } from "../record/life.js";
import { TickRecord } from "../record/record.js";
import { Requests } from "../record/requests.js";
import { Bar } from "./bar.js";
import { Callouts } from "./callouts.js";
import { Engines } from "./engines.js";
import { link, obey, read, write } from "./link.js";
import { Overview } from "./overview.js";
import { Scene } from "./scene.js";
import { Stage } from "./stage.js";
import { summaryOf } from "./summary.js";
import { Tiles } from "./tiles.js";

const DRAW_MS = 1000; // as often as numbers can be read; the plots are drawn more often

export function Ticks() {
  const { history, status, cause, version, engine, engines } = useStoreEvery(feed, DRAW_MS);
  const state = useStore(view);
  const { target, problem } = useStore(link);
  useRedraw(DRAW_MS + 200); // quantiles age while the engine idles
  const run = history?.engine.incarnation_id;
  useEffect(() => run && goLive, [run]); // once the run is over: its moments do not exist in the next
  useEffect(() => {
    read();
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  useEffect(() => void obey(), [target, version, status]);
  useEffect(() => {
    if (engines.length > 1 || history?.ticks.length) write(history);
  }, [state.end, state.pinned, state.span, state.axis, state.request, engine, engines.length]);
  const head = html`<${Engines} />${problem && html`<${Problem} text=${problem} />`}`;
  const without = status === "gone" && ["unloaded", "failed"].includes(cause);
  if (!history) return html`${head}<${Nothing} why=${without ? cause : status} />`;
  const nowS = engineNow(history);
  const request = state.request === null ? null : (history.requests.get(state.request) ?? null);
  return html`
    ${head}
    <${Tiles} history=${history} summary=${summaryOf(history, nowS)} />
    <${Callouts} />
    <${Scene} />
    ${
      !history.ticks.length
        ? html`<div class="card empty"><h2>The engine has not done anything yet</h2>
          <p>Ticks appear here as soon as it gets a request. <a href="#chat">Ask the model
          something</a>, or send requests to <code>/v1/chat/completions</code>.</p></div>`
        : html`<div class="watch">
          <section class="card plots" aria-label="Plots of ticks">
            <${Bar} history=${history} state=${state} />
            <${Overview} history=${history} />
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

function Problem({ text }) {
  return html`<div class="notice wait" role="alert"><i class="dot wait"></i>
    <p><b>The link cannot be opened.</b> ${text} You see what the engine is doing now.</p>
    <button class="quiet icon" aria-label="Close this notice" onClick=${() => link.set({ problem: null })}>
      <${Icon} name="close" /></button>
  </div>`;
}

function Nothing({ why }) {
  const words = {
    locked: ["A key is needed", "Enter the server's API key above to see its ticks."],
    absent: ["Nothing to show", "This server does not show its ticks."],
    gone: [
      "Waiting for the engine",
      "It is loading its model or being restarted. Ticks appear here by themselves.",
    ],
    unloaded: [
      "The model is not loaded yet",
      "It loads with the first request. Its ticks then appear here by themselves.",
    ],
    failed: ["The model could not be loaded", "The notice above says why. The next request tries to load it again."],
    lost: ["Waiting for the server", "The server does not answer. This page tries again every few seconds."],
  };
  const [title, text] = words[why] ?? ["Connecting", "Asking the engine for its last ticks."];
  return html`<div class="card empty"><h2>${title}</h2><p>${text}</p>
    ${why === "unloaded" && html`<a class="button" href="#chat">Ask it something</a>`}</div>`;
}
