// How the engine is: a pill in the header, and a notice when something is wrong.
import { clockTime, count } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { later, style, withAll } from "../parts/lazy.js";
import { html, useEffect, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { models } from "../request/models.js";
import { feed, show, shownEngine } from "./feed.js";

const WORDS = {
  connecting: ["wait", "connecting"],
  live: ["good", "live"],
  gone: ["bad", "engine away"],
  lost: ["bad", "server away"],
  locked: ["wait", "key needed"],
  absent: ["wait", "no feed"],
  asleep: ["wait", "asleep"],
};
/** Of an engine that is away, where it says why. */
const AWAY = {
  restarting: ["bad", "restarting"],
  unloaded: ["wait", "not loaded"],
  loading: ["wait", "loading the model"],
  failed: ["bad", "not loaded"],
};

const ModelMenu = later(
  async () => (await withAll(import("./modelmenu.js"), style("ui/feed/modelmenu.css"))).ModelMenu,
);

/** At a glance: model, how many slots are busy, or what is wrong; and the menu of models. */
export function Pill() {
  const [open, setOpen] = useState(false);
  const { status, cause, history, engines } = useStore(feed);
  const [kind, word] = (status === "gone" && AWAY[cause]) || WORDS[status];
  const busy = history && status === "live" ? history.nBusy : null;
  const text = busy === null ? word : `${count(busy)} of ${count(history.engine.n_slots)} slots busy`;
  const { model: engineModel, engine_id: engine, node } = history?.engine ?? {};
  const { all } = useStore(models);
  const model = engineModel ?? all.find(({ status: { engines: own = {} } }) => shownEngine() in own)?.id;
  const title = history ? `Model ${model}, engine ${engine}${node ? ` on ${node}` : ""}` : "";
  return html`<div class="pill" title=${title}>
    <button class="quiet to-models" popovertarget="model-menu" aria-label=${`Model menu${model ? `: ${model}` : ""}`}>
      <i class=${`dot ${kind}`}></i><b class="model">${model ?? "Model"}</b>
      <${Icon} name="chevron" size=${14} /></button>
    <div id="model-menu" class="model-menu" popover="auto" role="dialog" aria-label="Models"
      onToggle=${({ newState }) => setOpen(newState === "open")}>${open && html`<${ModelMenu} />`}</div>
    ${engines.length > 1 && html`<${Engines} engines=${engines} />`}
    <span>${text}</span></div>`;
}

/** Which engine is looked at, where there are several. */
function Engines({ engines }) {
  return html`<label class="engines"><span>engine${" "}</span>
    <select aria-label="engine" value=${shownEngine()} onChange=${(event) => show(event.target.value)}>
      ${engines.map((id) => html`<option key=${id} value=${id}>${id}</option>`)}</select></label>`;
}

/**
 * What happened to the engine or the server, announced to screen readers. `restarts`: also that an engine restarts,
 * which an answer under way shows itself.
 */
export function Notices({ restarts }) {
  const { status, detail, cause, sinceUnixS, restarted } = useStore(feed);
  const [read, setRead] = useState(null);
  useEffect(() => setRead(null), [restarted]);
  const back = restarts && restarted && restarted !== read && status === "live";
  const notice = restarts || cause !== "restarting" ? noticeOf(status, cause, detail, sinceUnixS) : null;
  return html`<div class="notices" role="status">
    ${notice && html`<${Notice} kind=${notice[0]} title=${notice[1]}>${notice[2]}<//>`}
    ${
      back &&
      html`<${Notice} kind="good" title="The engine was restarted" onClose=${() => setRead(restarted)}>
      Connected to the new one at ${clockTime(restarted.atUnixS, { milliseconds: false })}. The ticks of the
      old one are lost; the answers that it was writing go on.<//>`
    }
  </div>`;
}

/** Return kind, title and text of what is wrong, if anything is. */
function noticeOf(status, cause, detail, sinceUnixS) {
  if (status === "lost") {
    const more = "This page tries again every few seconds. If this does not change, look at the server's log.";
    return ["bad", "The server cannot be reached", `${detail} ${more}`];
  }
  if (status === "absent") {
    const text = html`This server does not offer <code>/debug/stream</code>, which sends them.`;
    return ["wait", "No live ticks", text];
  }
  if (status !== "gone") return null;
  if (cause === "restarting") {
    const at = clockTime(sinceUnixS, { milliseconds: false });
    const more = "You need not do anything. New requests wait for it, and the ticks come back by themselves.";
    return ["bad", "The engine is being restarted", `It ended at ${at}. ${more}`];
  }
  if (cause === "failed")
    return ["bad", "The model could not be loaded", `${detail} The next message to it tries again.`];
  if (cause in AWAY) return null;
  const more = "You need not do anything: the ticks come back when it does.";
  return ["bad", "The engine cannot be reached", `${detail} ${more}`];
}

function Notice({ kind, title, onClose, children }) {
  return html`<div class=${`notice ${kind}`}>
    <i class=${`dot ${kind}`}></i>
    <p><b>${title}.</b> ${children}</p>
    ${
      onClose &&
      html`<button class="quiet icon" aria-label="Close this notice" onClick=${onClose}>
      <${Icon} name="close" /></button>`
    }
  </div>`;
}
