// The bar above the plots: live or paused, axis, zoom, link, download.
import { clockTime, count, duration, some } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Menu } from "../parts/menu.js";
import { html, useState } from "../parts/preact.js";
import { FoldCaptions } from "../plots/figure.js";
import { placeOf, zoomIn, zoomOut } from "../plots/keys.js";
import { goLive, isLive, pause, showAll, turn, windowOf } from "../plots/window.js";
import { KINDS, save } from "../record/download.js";
import { copyLink } from "./link.js";

const AXES = { ticks: "Ticks", time: "Time" };

export function Bar({ history, state }) {
  const [notice, setNotice] = useState("");
  const live = isLive();
  const { ticks } = windowOf(history, state);
  const copy = async () => {
    setNotice(await copyLink(history));
    setTimeout(() => setNotice(""), 4000);
  };
  return html`<div class="bar">
    <button class=${`live ${live ? "" : "primary"}`} aria-pressed=${String(!live)}
      onClick=${() => (live ? pause(history) : goLive())}>
      <${Icon} name=${live ? "pause" : "play"} />${live ? "Pause" : "Go live"}</button>
    <div class="segments" role="group" aria-label="Axis">${Object.entries(AXES).map(
      ([name, word]) => html`<button key=${name} class="segment" aria-pressed=${String(state.axis === name)}
      onClick=${() => turn(history, name)}>${word}</button>`,
    )}</div>
    <div class="group" role="group" aria-label="Zoom">
      <button class="icon" aria-label="Zoom out" title="Show more (−)"
        onClick=${() => zoomOut(history, placeOf(history))}>−</button>
      <button class="icon" aria-label="Zoom in" title="Show less (+)"
        onClick=${() => zoomIn(history, placeOf(history))}>+</button>
      <button title="Show all that is known (0)" onClick=${() => showAll(history)}>All</button></div>
    <${When} history=${history} ticks=${ticks} state=${state} live=${live} />
    <div class="group">
      <button class="quiet" onClick=${copy}><${Icon} name="link" />Copy link</button>
      <${Download} history=${history} ticks=${ticks} />
      <${FoldCaptions} /></div>
    <p class="hidden" role="status">${notice}</p>
    ${notice && html`<p class="said" aria-hidden="true">${notice}</p>`}
  </div>`;
}

/** Which ticks are shown, of when. */
function When({ history, ticks, state, live }) {
  if (!ticks.length) {
    return html`<p class="when forgotten" role="status">${
      state.axis === "time" ? "The engine did nothing here, or its ticks are no longer stored." :
        "These ticks are no longer stored."
    } <button class="quiet" onClick=${goLive}>Go live</button></p>`;
  }
  const [first, last] = [ticks[0], ticks.at(-1)];
  const timeOf = (atS) => clockTime(history.unix(atS), { milliseconds: false });
  const endS = last.started_s + last.total_s;
  const behind = history.lastId - last.tick_id;
  const newer = behind > 0 ? `, ${count(behind)} newer` : "";
  return html`<p class="when">${timeOf(first.started_s)} – ${timeOf(endS)}
    <span class="muted"> · ${some(ticks.length, "tick")} in ${duration(endS - first.started_s)}</span>${" "}
    ${live && state.held !== null && behind > 0 && html`<span class="badge wait">held${newer}</span>`}
    ${!live && html`<span class="badge wait">paused${newer}</span>`}</p>`;
}

function Download({ history, ticks }) {
  return html`<${Menu} kind="download" summary=${html`<${Icon} name="download" />Download`}>${Object.entries(
    KINDS,
  ).map(
    ([kind, { word, text }]) => html`<button key=${kind} disabled=${!ticks.length}
      onClick=${() => save(history, ticks, kind)}><b>${word}</b> <span class="muted">${text}</span></button>`,
  )}<//>`;
}
