// The page: header, notices, one of two views.
import { access, useKey } from "./api.js";
import { feed, follow } from "./feed.js";
import { Notices, Pill } from "./notices.js";
import { html, render, useEffect, useRef, useState } from "./preact.js";
import { Playground } from "./playground.js";
import { useStore } from "./store.js";
import { followTheme, nextTheme, theme } from "./theme.js";
import { Ticks } from "./ticks.js";

const VIEWS = { playground: ["Playground", Playground], ticks: ["Live ticks", Ticks] };
const viewOf = () => (location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "playground");

function App() {
  const [name, setName] = useState(viewOf());
  useEffect(() => {
    const turn = () => setName(viewOf());
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  const [title, View] = VIEWS[name];
  useEffect(() => void (document.title = `${title} · cobali_ray`), [title]);
  const main = useRef(null);
  const skip = () => main.current.focus();
  return html`
    <header class="top">
      <button class="skip" onClick=${skip}>Skip to the content</button>
      <a class="brand" href="#playground"><img src="ui/icon.svg" alt="" width="26" height="26" />cobali_ray</a>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([key, [text]]) => html`<a key=${key} href=${`#${key}`}
          aria-current=${key === name ? "page" : null}>${text}</a>`,
        )}
      </nav>
      <${Pill} />
      <${ThemeButton} />
    </header>
    <main ref=${main} tabindex="-1" class=${`view-${name}`}>
      <h1 class="hidden">${title}</h1>
      <${Notices} />
      <${KeyForm} />
      <${View} />
    </main>`;
}

function ThemeButton() {
  const { choice } = useStore(theme);
  const sign = { auto: "◐", light: "☀", dark: "☾" }[choice];
  return html`<button class="quiet icon" onClick=${nextTheme} title=${`Colours: ${choice}`}
    aria-label=${`Colours: ${choice}. Change.`}>${sign}</button>`;
}

function KeyForm() {
  const { asked, wrong, key } = useStore(access);
  const field = useRef(null);
  if (!asked) return null;
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
      <input ref=${field} type="password" autocomplete="off" value=${key} placeholder="API key" required /></label>
    <button class="primary">Use key</button>
  </form>`;
}

followTheme();
render(html`<${App} />`, document.getElementById("app"));
follow();
document.documentElement.dataset.ready = "";
export { feed };
