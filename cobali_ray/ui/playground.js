// The playground: talk to the model, or send one prompt to several streams at once.
import { access } from "./api.js";
import { Answer } from "./answer.js";
import { Compared } from "./compare.js";
import { CopyDialog, copyRequest } from "./copy.js";
import { Empty } from "./empty.js";
import { feed } from "./feed.js";
import { MOST_STREAMS, clear, keepStreams, loadModels, openRuns, play, send, stopAll } from "./play.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Settings } from "./settings.js";
import { useStore } from "./store.js";

const WHAT =
  "The answer streams in here, with what it took: time to the first token, tokens per second, and why it ended.";

/** The whole view. */
export function Playground() {
  const state = useStore(play);
  const { entered } = useStore(access);
  const engine = useStore(feed).history?.engine.incarnation_id;
  useEffect(() => void loadModels(), [entered, engine]);
  return html`<div class="play">
    <section class="talk" aria-label="Conversation">
      ${
        state.mode === "chat"
          ? html`<${Chat} state=${state} />`
          : html`<${Compared} compared=${state.compared} />`
      }
      <${Composer} state=${state} />
    </section>
    <${Settings} state=${state} />
    <${CopyDialog} />
  </div>`;
}

/** How many runs are on their way; draws again when that changes. */
function useOpenRuns(state) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const look = () => redraw(openRuns(play.get()).length);
    const stops = openRuns(state)
      .flatMap((run) => run.answers)
      .map((answer) => answer.watch(look));
    look();
    return () => stops.forEach((stop) => stop());
  }, [state.turns, state.compared]);
  return openRuns(state).length;
}

function Chat({ state }) {
  const { turns } = state;
  const busy = useOpenRuns(state) > 0;
  const end = useRef(null);
  useLayoutEffect(() => end.current?.scrollIntoView({ block: "end" }), [turns.length]);
  if (!turns.length) return html`<${Empty} title="Ask the model something" text=${WHAT} />`;
  return html`<ol class="turns">
    ${turns.map(
      ({ prompt, run }, i) => html`<li key=${run}>
      <div class="asked"><span class="hidden">You: </span>${prompt}</div>
      <${Answer} answer=${run.answers[0]} last=${i === turns.length - 1} busy=${busy} />
    </li>`,
    )}
    <li ref=${end} class="end" aria-hidden="true"></li>
  </ol>`;
}

function Composer({ state }) {
  const { mode, draft, streams } = state;
  const nRuns = useOpenRuns(state);
  const field = useRef(null);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, 220)}px`;
  }, [draft]);
  const go = (event) => {
    event?.preventDefault();
    send(play.get().draft); // newer than what was drawn last, for who types fast
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) go(event);
    if (event.key === "Escape") stopAll();
  };
  const nothing = mode === "chat" ? !state.turns.length : !state.compared;
  return html`<form class=${`composer card ${mode}`} onSubmit=${go}>
    <div class="modes" role="group" aria-label="Mode">
      <${Mode} name="chat" mode=${mode} text="Chat" />
      <${Mode} name="compare" mode=${mode} text="Compare" />
      ${mode === "compare" && html`<${Streams} streams=${streams} />`}
      <span class="grow"></span>
      <button type="button" class="quiet" onClick=${copyRequest}>Copy request</button>
      <button type="button" class="quiet" onClick=${clear} disabled=${nothing}>Clear</button>
    </div>
    <label class="hidden" for="prompt">Your message</label>
    <div class="write">
      <textarea id="prompt" ref=${field} rows="1" value=${draft} onKeyDown=${onKeyDown}
        placeholder=${mode === "chat" ? "Message" : "One prompt for all streams"}
        onInput=${(event) => play.set({ draft: event.target.value })}></textarea>
      ${
        nRuns
          ? html`<button type="button" class="stop" onClick=${stopAll}>Stop</button>`
          : html`<button class="primary" disabled=${!draft.trim()}>Send</button>`
      }
    </div>
    <p class="hint">Enter sends, Shift+Enter makes a new line, Escape stops.</p>
  </form>`;
}

function Mode({ name, mode, text }) {
  return html`<button type="button" class="segment" aria-pressed=${String(name === mode)}
    onClick=${() => play.set({ mode: name })}>${text}</button>`;
}

function Streams({ streams }) {
  const onInput = (event) => play.set({ streams: event.target.value });
  const onBlur = () => play.set({ streams: keepStreams() });
  return html`<label class="streams">
    <input type="number" min="1" max=${MOST_STREAMS} value=${streams}
      onInput=${onInput} onBlur=${onBlur} /> streams</label>`;
}
