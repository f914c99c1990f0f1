// The messages of a chat: a user's, which can be edited, and a model's, which can be written again.
import { Answer } from "../answer/answer.js";
import { feed } from "../feed/feed.js";
import { focusLater, toMessage } from "../parts/focus.js";
import { Icon } from "../parts/icons.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../parts/preact.js";
import { useRedraw, useStore } from "../parts/store.js";
import { pathOf, siblingsOf } from "../request/conversations.js";
import { Chips } from "./chips.js";
import { Shorten, Start, TOO_LONG } from "./shorten.js";
import { answerOf, branchWith, canGoOn, edit, giveResult, goOn, regenerate, turnTo } from "./talk.js";
import { standing } from "./waiting.js";

/** A conversation's branch in sight; a new message comes into view. `busy`: an answer is under way. */
export function Turns({ conversation, busy }) {
  const path = pathOf(conversation);
  const end = useRef(null);
  useLayoutEffect(() => end.current.scrollIntoView({ block: "end" }), [conversation.id, path.length]);
  return html`<ol class="turns">
    ${path.map((message, i) => {
      const Message = message.role === "user" ? UserTurn : ModelTurn;
      return html`<li key=${message.id} id=${`message-${message.id}`}>
        <${Message} conversation=${conversation} message=${message} last=${i === path.length - 1} busy=${busy} />
      </li>`;
    })}
    <li ref=${end} class="end" aria-hidden="true"></li>
    <${ToEnd} end=${end} />
  </ol>`;
}

/** Leads to the end, while that is out of sight. */
function ToEnd({ end }) {
  const [away, setAway] = useState(false);
  useEffect(() => {
    const watcher = new IntersectionObserver(([{ isIntersecting }]) => setAway(!isIntersecting));
    watcher.observe(end.current);
    return () => watcher.disconnect();
  }, []);
  const jump = () => end.current.scrollIntoView({ block: "end" });
  return away
    ? html`<li class="to-end"><button class="icon" aria-label="Jump to the end" title="Jump to the end"
        onClick=${jump}><${Icon} name="down" /></button></li>`
    : null;
}

/** A message of the user. `busy`: an answer is under way, so nothing can be changed. */
function UserTurn({ conversation, message, busy }) {
  const [editing, setEditing] = useState(false);
  const { text, files, images, start } = message;
  if (editing) return html`<${Editor} message=${message} busy=${busy} onClose=${() => setEditing(false)} />`;
  return html`${start && html`<${Start} conversation=${conversation} message=${message} busy=${busy} />`}
    <div class="said">
    <div class="asked"><span class="hidden">You: </span>${text}<${Chips} files=${files} images=${images} /></div>
    <div class="actions">
      <${Versions} conversation=${conversation} message=${message} busy=${busy} />
      <button class="quiet small" disabled=${busy} onClick=${() => setEditing(true)}>
        <${Icon} name="pencil" size=${14} />Edit</button>
    </div>
  </div>`;
}

function Editor({ message, busy, onClose }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    field.current.focus();
    field.current.setSelectionRange(message.text.length, message.text.length);
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, 400)}px`;
  }, []);
  const go = (event) => {
    event.preventDefault();
    const text = field.current.value;
    if (busy || !text.trim()) return;
    onClose();
    edit(message, text);
    toMessage(event);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) go(event);
    if (event.key !== "Escape") return;
    event.preventDefault();
    onClose();
  };
  return html`<form class="editor card" onSubmit=${go}>
    <textarea ref=${field} aria-label="Edit your message" rows="1" defaultValue=${message.text}
      onKeyDown=${onKeyDown}></textarea>
    <${Chips} files=${message.files} images=${message.images} />
    <div class="actions"><span class="hint grow">The old version and its answers stay.</span>
      <button type="button" class="quiet" onClick=${onClose}>Cancel</button>
      <button class="primary" disabled=${busy}>Send</button></div>
  </form>`;
}

/** ‹ 2/3 ›: which of several versions of a message this is. */
function Versions({ conversation, message, busy }) {
  const all = siblingsOf(conversation, message);
  if (all.length < 2) return null;
  const at = all.findIndex(({ id }) => id === message.id);
  const turn =
    (by) =>
    ({ detail: clicks }) => {
      const next = all[at + by];
      turnTo(next);
      if (!clicks) focusLater(() => turnerOf(next, by));
    };
  const kind = message.role === "user" ? "message" : "answer";
  return html`<span id=${versionsOf(message)} class="versions" role="group" aria-label=${`Versions of this ${kind}`}>
    <button class="quiet icon small" disabled=${busy || at === 0} onClick=${turn(-1)}
      aria-label="Version before"><${Icon} name="left" size=${14} /></button>
    <span>${at + 1}/${all.length}</span>
    <button class="quiet icon small" disabled=${busy || at === all.length - 1} onClick=${turn(1)}
      aria-label="Version after"><${Icon} name="right" size=${14} /></button>
  </span>`;
}

const versionsOf = ({ id }) => `versions-${id}`;

/** The button beside a message that turns on in the same direction, or back where there is none further. */
function turnerOf(message, by) {
  const buttons = [...(document.getElementById(versionsOf(message))?.querySelectorAll("button") ?? [])];
  return (by < 0 ? buttons : buttons.reverse()).find(({ disabled }) => !disabled);
}

/** An answer of the model, and what can be done with it. `last`: it ends the branch. */
function ModelTurn({ conversation, message, last, busy }) {
  const store = answerOf(message);
  const open = busy && last;
  const waiting = useStanding(store, open);
  const actions = html`<${Versions} conversation=${conversation} message=${message} busy=${busy} />
    ${
      last &&
      !open &&
      canGoOn(message) &&
      html`<button class="quiet small" disabled=${busy} onClick=${(event) => (goOn(message), toMessage(event))}>
        <${Icon} name="play" size=${14} />Continue</button>`
    }
    ${
      last &&
      !open &&
      message.error?.code === TOO_LONG &&
      html`<${Shorten} conversation=${conversation} busy=${busy} />`
    }
    ${!open && html`<${Again} message=${message} busy=${busy} />`}`;
  const onResult = last && !busy ? (id, result) => giveResult(message, id, result) : null;
  return html`<${Answer} answer=${store} last=${last} busy=${open} waiting=${waiting} actions=${actions}
    onResult=${onResult} goOn=${busy ? null : (text, tokens) => branchWith(message, text, tokens)} />`;
}

/** Asks for another answer; after a refusal that says when to come back, not before then. */
function Again({ message, busy }) {
  const leftS = useLeftS(message.error?.retryAtMs ?? 0);
  const word = message.status === "failed" && !message.text ? "Try again" : "Regenerate";
  return html`<button class="quiet small" disabled=${busy || leftS > 0}
    onClick=${(event) => (regenerate(message), toMessage(event))}>
    <${Icon} name="retry" size=${14} />${leftS > 0 ? `Try again in ${leftS} s` : word}</button>`;
}

function useLeftS(untilMs) {
  const leftS = Math.max(0, Math.ceil((untilMs - Date.now()) / 1000));
  useRedraw(leftS ? 250 : null);
  return leftS;
}

/** The state of an answer that has not begun, in words. */
function useStanding(store, open) {
  const { history, status: engine, cause } = useStore(feed);
  const { status, xRequestId } = useStore(store);
  if (!open || status !== "waiting") return null;
  return engine === "gone" && cause === "loading" ? "loading the model …" : standing(history, xRequestId);
}
