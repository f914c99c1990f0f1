// The page: header, notices, one of its views.
//
// How the modules follow each other, from the server to the screen:
//
//   /debug/stream ─► feed.js (one connection, kept up, let go while hidden) ─► history.js (ticks, requests, slots)
//      ─► window.js (which part of which axis, which tick) ─► stage.js ─► columns.js ─► tickplots.js, lanes.js
//                                                          └► record.js, life.js, requests.js, tiles.js
//   /v1/chat/completions ◄── chat.js ◄── talk.js ◄── chatview.js, message.js ─► answer.js, composer.js, settings.js
//                                │         └► library.js ─► place.js ─► shelf.js (IndexedDB) or served.js (/v1/chats)
//                                │            ▲ sidebar.js ─► portable.js, transfer.js
//                                └ comparestate.js ◄── compare.js ─► measures.js, difference.js ─► diff.js
//
// Folders import only from those below: chat, compare and ticks; answer and record; plots; feed; request; parts.
//
// A conversation is a value, a tree of messages; talk.js asks for answers, stores them as they grow and runs their
// tools. An answer is answer.js over markdown.js, calls.js and numbers.js; no string ever becomes HTML. Modules that
// say "No DOM" only compute, and are tested directly. State lives in stores (store.js), which call their watchers
// once per frame: 500 ticks or tokens a second are drawn once per frame.
import { ChatView } from "./chat/chatview.js";
import { feed, follow } from "./feed/feed.js";
import { Notices, Pill } from "./feed/notices.js";
import { access, useKey } from "./parts/api.js";
import { Icon } from "./parts/icons.js";
import { later, script, style, withAll } from "./parts/lazy.js";
import { html, render, useEffect, useRef, useState } from "./parts/preact.js";
import { useStore } from "./parts/store.js";
import { followTheme, nextTheme, theme } from "./parts/theme.js";
import { loadModels } from "./request/models.js";

/** What plots of ticks need: uPlot, and how they look. */
const plots = () => [
  script("ui/vendor/uplot-1.6.32.js"),
  style("ui/vendor/uplot-1.6.32.css"),
  style("ui/ticks/ticks.css"),
];
const loadCompare = async () => {
  const styles = [style("ui/answer/answer.css"), style("ui/compare/compare.css")];
  return (await withAll(import("./compare/compare.js"), ...plots(), ...styles)).CompareView;
};
const loadTicks = async () => (await withAll(import("./ticks/ticks.js"), ...plots())).Ticks;

/** By the name behind the address's #, up to a ? or a slash; the rest belongs to the view. */
const VIEWS = {
  chat: ["Chat", ChatView],
  compare: ["Compare", later(loadCompare)],
  ticks: ["Live ticks", later(loadTicks)],
};

const SIGNS = { auto: "auto", light: "sun", dark: "moon" };

function viewOf() {
  const [name] = location.hash.slice(1).split(/[?/]/);
  return Object.hasOwn(VIEWS, name) ? name : "chat";
}

/** The view that the address asks for. */
function useView() {
  const [name, setName] = useState(viewOf());
  useEffect(() => {
    const turn = () => setName(viewOf());
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  return name;
}

function App() {
  const name = useView();
  const [title, View] = VIEWS[name];
  useEffect(() => void (document.title = `${title} · cobali_ray`), [title]);
  const main = useRef(null);
  const skip = () => main.current.focus();
  return html`
    <header class="top">
      <button class="skip" onClick=${skip}>Skip to the content</button>
      <a class="brand" href="#chat"><img src="ui/icon.svg" alt="" width="26" height="26" />cobali_ray</a>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([key, [text]]) => html`<a key=${key} href=${`#${key}`}
          aria-current=${key === name ? "page" : null}>${text}</a>`,
        )}
      </nav>
      <${Pill} />
      <a class="quiet-link" href="docs">API</a>
      <${ThemeButton} />
    </header>
    <main ref=${main} tabindex="-1" class=${`view-${name}`}>
      <h1 class="hidden">${title}</h1>
      <${Notices} restarts=${name !== "chat"} />
      <${KeyForm} />
      <${ModelList} />
      <${View} />
    </main>`;
}

/** Loads the list of models again when a key was entered or an engine came or went; draws nothing. */
function ModelList() {
  const { entered } = useStore(access);
  const { history, cause } = useStore(feed);
  const engine = history?.engine.incarnation_id;
  useEffect(() => void loadModels(), [entered, engine, cause]);
  return null;
}

function ThemeButton() {
  const { choice } = useStore(theme);
  return html`<button class="quiet icon" onClick=${nextTheme} title=${`Colours: ${choice}`}
    aria-label=${`Colours: ${choice}. Change.`}><${Icon} name=${SIGNS[choice]} size=${18} /></button>`;
}

function KeyForm() {
  const { keyNeeded, wrong, key } = useStore(access);
  const field = useRef(null);
  if (!keyNeeded) return null;
  const send = (event) => {
    event.preventDefault();
    useKey(field.current.value.trim());
  };
  return html`<form class="card key-form" onSubmit=${send} aria-label="API key">
    <div>
      <h2>${wrong ? "That key was refused" : "This server asks for an API key"}</h2>
      <p class="muted">One of the server's <code>api_keys</code>. It stays in this tab and is gone when
        you close it.</p>
    </div>
    <label class="grow"><span class="hidden">API key</span>
      <input ref=${field} type="password" autocomplete="off" defaultValue=${key} placeholder="API key"
        required /></label>
    <button class="primary">Use key</button>
  </form>`;
}

followTheme();
render(html`<${App} />`, document.getElementById("app"));
follow();
