// The chat: the list of conversations, the one in sight, and its settings.
import { Empty } from "../answer/empty.js";
import { EngineInUse } from "../feed/inuse.js";
import { Icon } from "../parts/icons.js";
import { later, style, withAll } from "../parts/lazy.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { Composer } from "../request/composer.js";
import { messageOf, pathOf } from "../request/conversations.js";
import { DEFAULTS, keepDefaults } from "../request/params.js";
import { Settings } from "../request/settings.js";
import { Chips } from "./chips.js";
import { NOTHING, attach, dequeue, detach, draftOf, drafts, enqueue, write } from "./draft.js";
import { addressOf, beginNew, change, library, openLibrary, seeNamed } from "./library.js";
import { isOnServer } from "./place.js";
import { Panel, closeDrawers, isCovered, panels, toggle } from "./panels.js";
import { Context } from "./shorten.js";
import { Sidebar } from "./sidebar.js";
import { answerOf, currentBody, followOpen, running, send, stop } from "./talk.js";

const Turns = later(
  async () => (await withAll(import("./message.js"), style("ui/answer/answer.css"))).Turns,
);
const Presets = later(async () => (await import("./presets.js")).Presets);
const ToolSettings = later(async () => (await import("../request/tools.js")).ToolSettings);

let opened = false;

export function ChatView() {
  const { id, held, trouble, missing } = useStore(library);
  const { messages } = useStore(running);
  const shown = useStore(panels);
  const conversation = held[id];
  const busy = id in messages;
  const answer = messageOf(conversation, messages[id]); // the one under way, or null
  useKeys();
  useAddress(conversation, missing);
  useEffect(followOpen, [conversation, busy]);
  const before = useRef(matchMedia("(pointer: coarse)").matches ? id : null); // a touch screen would show its keys
  useEffect(() => {
    if (before.current !== id && !isCovered()) document.getElementById("prompt").focus({ preventScroll: true });
    before.current = id;
  }, [id]);
  const onDrop = (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attach(conversation, [...event.dataTransfer.files]);
  };
  return html`<div class=${`chat ${shown.list ? "with-list" : ""} ${shown.settings ? "with-settings" : ""}`}>
    <${EngineInUse} model=${answer?.model ?? conversation.model} revision=${`${id} ${conversation.head}`}
      request=${answer && answerOf(answer).get().xRequestId} />
    <${Panel} name="list" label="Conversations"><${Sidebar} close=${closeDrawers} /></${Panel}>
    <section class="talk" aria-label="Conversation" onDrop=${onDrop} onDragOver=${(event) => event.preventDefault()}>
      <header class="chat-bar">
        <${Toggle} name="list" icon="menu" label="Conversations" shown=${shown} />
        <h2>${conversation.title || "New chat"}</h2>
        <${Toggle} name="settings" icon="settings" label="Settings" shown=${shown} />
      </header>
      ${trouble && html`<p class="notice bad" role="alert">Not stored: ${trouble}</p>`}
      ${
        missing &&
        html`<p class="notice wait" role="alert">${isOnServer() ? "The server" : "This browser"} does not have the
          conversation of this address.</p>`
      }
      <${Messages} conversation=${conversation} busy=${busy} />
      <${Writing} conversation=${conversation} busy=${busy} />
      <${Ended} conversation=${conversation} busy=${busy} />
    </section>
    <${Panel} name="settings" label="Settings of this chat">
      <${ChatSettings} conversation=${conversation} /></${Panel}>
  </div>`;
}

/** Keep the address and the conversation in sight the same, so that Back and Forward lead through conversations. */
function useAddress(conversation, missing) {
  const [ready, setReady] = useState(false);
  useEffect(() => {
    (opened ? seeNamed() : openLibrary()).then(() => setReady(true));
    opened = true;
    addEventListener("popstate", seeNamed);
    return () => removeEventListener("popstate", seeNamed);
  }, []);
  const before = useRef(null); // the conversation that the address named last
  const address = addressOf(conversation);
  useEffect(() => {
    if (!ready || missing) return;
    const same = before.current === null || before.current === conversation.id || location.hash === address;
    if (location.hash !== address) history[same ? "replaceState" : "pushState"](null, "", address);
    before.current = conversation.id;
  }, [ready, missing, address, conversation.id]);
}

const idOf = (panel) => `toggle-${panel}`;

function Toggle({ name, icon, label, shown }) {
  return html`<button id=${idOf(name)} class="quiet icon" aria-label=${label} title=${label}
    aria-expanded=${String(shown[name])} onClick=${() => toggle(name)}><${Icon} name=${icon} /></button>`;
}

/** Shortcuts that hold wherever the focus is. */
function useKeys() {
  useEffect(() => {
    const onKeyDown = (event) => {
      const key = event.key.toLowerCase();
      const control = event.ctrlKey || event.metaKey;
      if (event.defaultPrevented || document.querySelector("dialog[open], :popover-open")) return;
      if (control && event.shiftKey && key === "o") {
        beginNew();
        closeDrawers();
        document.getElementById("prompt")?.focus();
      } else if (control && !event.shiftKey && key === "k") toggle("list", true, "search");
      else if (isLetter(event)) {
        document.getElementById("prompt")?.focus(); // which gets the letter, too
        return;
      } else if (key !== "escape") return;
      else if (!closeDrawers() && !event.target.closest?.(".panel")) stop();
      event.preventDefault();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

/** Whether a key writes something where nothing else takes it. */
const isLetter = ({ key, ctrlKey, metaKey, altKey, target }) =>
  key.length === 1 &&
  key !== " " &&
  !(ctrlKey || metaKey || altKey || isCovered()) &&
  !target.closest?.("input, textarea, select, [contenteditable]");

function Messages({ conversation, busy }) {
  return pathOf(conversation).length
    ? html`<${Turns} conversation=${conversation} busy=${busy} />`
    : html`<${Empty} chosen=${conversation.model} send=${(text) => send({ text })} />`;
}

/** Messages that are sent once the answer under way is complete. */
function Queue({ id, queue, busy }) {
  if (!queue.length) return null;
  return html`<ul class="queue" aria-label="Sent after this answer">
    ${queue.map(
      (message, i) => html`<li key=${i}>
        <span>${message.text || message.files[0]?.name || message.images[0]?.name}</span>
        ${
          !busy &&
          html`<button type="button" class="quiet small" onClick=${() => send(dequeue(id, message))}>
            Send now</button>`
        }
        <button type="button" class="quiet icon small" aria-label="Do not send" title="Do not send"
          onClick=${() => dequeue(id, message)}><${Icon} name="close" size=${14} /></button></li>`,
    )}</ul>`;
}

const ENDS = { done: "The answer is complete.", stopped: "The answer was stopped.", failed: "The answer failed." };

/** Tells a screen reader that an answer has ended, and how. */
function Ended({ conversation, busy }) {
  const { id, head } = conversation;
  const before = useRef({ id, busy });
  const [outcome, setOutcome] = useState("");
  useEffect(() => {
    const ended = before.current.id === id && before.current.busy && !busy;
    if (ended || busy) setOutcome(ended ? (ENDS[messageOf(conversation, head)?.status] ?? "") : "");
    before.current = { id, busy };
  }, [id, busy]);
  return html`<p class="hidden" role="status" aria-label="Answer">${outcome}</p>`;
}

function Writing({ conversation, busy }) {
  const { id } = conversation;
  const draft = useStore(drafts).by[id] ?? NOTHING;
  const { text, files, images, refusals, reading, queue } = draft;
  const go = () => {
    const { text: written, files: texts, images: pictures } = draftOf(id); // newer than drawn
    const message = { text: written, files: texts, images: pictures };
    if (reading) return;
    if (busy) enqueue(id, message);
    else if (send(message)) write(id, { ...NOTHING, queue });
  };
  const last = messageOf(conversation, conversation.head);
  const next = !busy && queue.length > 0 && last?.status === "done" && !last.calls.length;
  useEffect(() => void (next && send(dequeue(id))), [next, id]);
  const above = html`<${Queue} id=${id} queue=${queue} busy=${busy} />
    <${Chips} files=${files} images=${images} onRemove=${(file) => detach(id, file)} />
    ${reading > 0 && html`<p class="muted" role="status">Reading …</p>`}
    ${refusals.map((refusal) => html`<p key=${refusal} class="refusal" role="alert">${refusal}</p>`)}`;
  const meter = html`<${Context} conversation=${conversation} draft=${draft} busy=${busy} />`;
  return html`<${Composer} kind="chat" draft=${text} running=${busy} above=${above}
    meter=${meter} placeholder=${busy ? "Message, sent after this answer" : "Message"}
    ready=${Boolean(text.trim() || files.length || images.length) && !reading}
    onDraft=${(written) => write(id, { text: written })} onSend=${go} onStop=${() => stop()}
    bodies=${() => currentBody(draft)} onFiles=${(chosen) => attach(conversation, chosen)} />`;
}

function ChatSettings({ conversation }) {
  const { id, settings, model } = conversation;
  const set = (patch) => change(id, (was) => ({ ...was, ...patch, setMs: Date.now() }));
  const setSetting = (name, value) =>
    change(id, (was) => ({ ...was, settings: { ...was.settings, [name]: value }, setMs: Date.now() }));
  return html`<${Settings} settings=${settings} model=${model} change=${setSetting}
    choose=${(name) => set({ model: name })} reset=${() => set({ settings: DEFAULTS })}
    onClose=${() => toggle("settings", false, idOf("settings"))}>
    <${Tools} settings=${settings} change=${setSetting} />
    <${Presets} settings=${settings} model=${model} take=${set} />
    <button class="quiet" onClick=${() => keepDefaults(conversation)}>Use for new chats</button>
    <p class="hint">These settings are for this chat only.</p>
  </${Settings}>`;
}

function Tools({ settings, change: choose }) {
  const [open, setOpen] = useState(false);
  return html`<details open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Tools</summary>${open && html`<${ToolSettings} settings=${settings} change=${choose} />`}</details>`;
}
