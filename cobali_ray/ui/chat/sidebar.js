// The list of conversations: new, search, rename, delete, export and import.
import { saveText } from "../parts/clipboard.js";
import { whenDrawn } from "../parts/focus.js";
import { some } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { later } from "../parts/lazy.js";
import { Menu } from "../parts/menu.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { byDay } from "../request/conversations.js";
import { models } from "../request/models.js";
import { beginNew, discard, library, lookUp, pin, rename, show } from "./library.js";
import { running, stop } from "./talk.js";

const portable = () => import("./portable.js");
const transfer = () => import("./transfer.js");
const OnServer = later(async () => (await import("./onserver.js")).OnServer);

/** The whole list. `close`: folds it where it hides the conversation; there it also has a button for that. */
export function Sidebar({ close }) {
  const { summaries, id, query, matches, deleted } = useStore(library);
  const [result, setResult] = useState(null); // of an import
  const shown = matches ? summaries.filter((summary) => matches.has(summary.id)) : summaries;
  const choose = async (chosen) => {
    const message = matches?.get(chosen)?.message;
    if (message) await (await transfer()).showMessage(chosen, message);
    else await show(chosen);
    close();
    if (message) whenDrawn(() => document.getElementById(`message-${message}`)?.scrollIntoView({ block: "center" }));
  };
  const look = async (text) => {
    library.set({ query: text });
    (await transfer()).search(text);
  };
  const begin = () => {
    beginNew();
    close();
  };
  return html`<div class="list">
    <div class="first">
      <button class="new" title="Ctrl+Shift+O" onClick=${begin}><${Icon} name="plus" />New chat</button>
      <button class="quiet icon close" aria-label="Close conversations" title="Close" onClick=${close}>
        <${Icon} name="close" /></button>
    </div>
    <label class="search"><span class="hidden">Search conversations</span><${Icon} name="search" />
      <input id="search" type="search" placeholder="Search" title="Ctrl+K" value=${query}
        onInput=${({ target }) => look(target.value)} /></label>
    <nav aria-label="Conversations">
      ${byDay(shown).map(
        ([day, group]) => html`<section key=${day}><h2>${day}</h2>
        <ul>${group.map(
          (summary) => html`<${Row} key=${summary.id} summary=${summary} chosen=${summary.id === id}
            onChoose=${choose} place=${matches?.get(summary.id)} />`,
        )}</ul></section>`,
      )}
      ${!shown.length && html`<p class="hint">${matches ? "Nothing found." : "No conversations yet."}</p>`}
    </nav>
    ${
      deleted &&
      html`<p class="told" role="status">Deleted: <b>${deleted.title}</b>
        ${" "}<button class="quiet small" onClick=${async () => (await transfer()).undo()}>Undo</button></p>`
    }
    ${
      result &&
      html`<p class=${`told ${result.wrong ? "wrong" : ""}`} role=${result.wrong ? "alert" : "status"}>
        ${result.text}</p>`
    }
    <${Portable} nKept=${summaries.length} report=${setResult} />
    <${Place} />
  </div>`;
}

function Row({ summary, chosen, onChoose, place }) {
  const [naming, setNaming] = useState(false);
  const { messages } = useStore(running);
  if (naming) return html`<li><${Name} summary=${summary} onClose=${() => setNaming(false)} /></li>`;
  return html`<li class=${chosen ? "chosen" : ""}>
    <button class="conversation" aria-current=${chosen ? "true" : null} title=${summary.title}
      onClick=${() => onChoose(summary.id)}>${summary.title}
      ${summary.id in messages && html`<i class="dot wait" role="img" aria-label="answering"></i>`}
      ${place?.parts && html`<${Hit} parts=${place.parts} />`}</button>
    <${More} summary=${summary} onRename=${() => setNaming(true)} />
  </li>`;
}

const Hit = ({ parts: [before, hit, behind] }) => html`<small>${before}<mark>${hit}</mark>${behind}</small>`;

function Name({ summary, onClose }) {
  const field = useRef(null);
  const open = useRef(true);
  useLayoutEffect(() => field.current.select(), []);
  const end = (title) => {
    if (!open.current) return;
    open.current = false;
    onClose();
    if (title !== null && title !== summary.title) rename(summary.id, title);
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    end(event.key === "Enter" ? event.target.value : null);
  };
  return html`<input ref=${field} aria-label="Name of the conversation" maxlength="200" defaultValue=${summary.title}
    onKeyDown=${onKeyDown} onBlur=${(event) => end(event.target.value)} />`;
}

/** What can be done with one conversation. */
function More({ summary, onRename }) {
  const { id, title, pinned } = summary;
  const saving = (kind) => async () => {
    const [whole, { asFile }] = await Promise.all([lookUp(id), portable()]);
    saveText(...(await asFile(whole, kind)));
  };
  const remove = () => {
    stop(id);
    discard(id);
  };
  return html`<${Menu} kind="more" label=${`More about ${title}`} summary=${html`<${Icon} name="more" />`}>
    <button onClick=${() => pin(id, !pinned)}><${Icon} name="pin" />${pinned ? "Unpin" : "Pin"}</button>
    <button onClick=${onRename}><${Icon} name="pencil" />Rename</button>
    <button onClick=${saving("html")}><${Icon} name="link" />Share as a file</button>
    <button onClick=${saving("md")}><${Icon} name="download" />Export as Markdown</button>
    <button onClick=${saving("json")}><${Icon} name="download" />Export as JSON</button>
    <button class="bad" onClick=${remove}><${Icon} name="trash" />Delete</button>
  <//>`;
}

/** Where they are kept. */
function Place() {
  const { chats } = useStore(models);
  return chats
    ? html`<${OnServer} chats=${chats} />`
    : html`<p class="hint">Conversations are stored in this browser only.</p>`;
}

/** All of them as a file, and such a file back. */
function Portable({ nKept, report }) {
  const field = useRef(null);
  const onChange = async () => {
    const [file] = field.current.files;
    field.current.value = "";
    try {
      const [{ MOST_BYTES, fromJson }, { add }] = await Promise.all([portable(), transfer()]);
      if (file.size > MOST_BYTES) throw new Error("It is too large.");
      const { nNew, nKnown } = await add(fromJson(await file.text()));
      const repeated = nKnown ? `, ${nKnown} ${nKnown === 1 ? "was" : "were"} here already` : "";
      report({ text: `Imported ${some(nNew, "conversation")}${repeated}.` });
    } catch (error) {
      report({ text: `${file.name} was not imported. ${error.message}`, wrong: true });
    }
  };
  return html`<div class="portable">
    <input ref=${field} type="file" accept=".json,.html" hidden aria-label="File to import"
      onChange=${onChange} />
    <button class="quiet small" onClick=${() => field.current.click()}>
      <${Icon} name="upload" size=${14} />Import</button>
    <button class="quiet small" disabled=${!nKept}
      onClick=${async () => {
        const [{ asJson }, { everything }] = await Promise.all([portable(), transfer()]);
        saveText(asJson(await everything()), "conversations.json");
      }}>
      <${Icon} name="download" size=${14} />Export all</button>
  </div>`;
}
