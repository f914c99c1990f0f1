// Where a prompt is written and sent.
import { toMessage } from "../parts/focus.js";
import { Icon } from "../parts/icons.js";
import { later, style, withAll } from "../parts/lazy.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/preact.js";

const MOST_PX = 220;
const CopyDialog = later(async () => (await withAll(import("./copy.js"), style("ui/answer/answer.css"))).CopyDialog);

/**
 * A field that grows with its text; above it `children`, and `above`, what is sent with it; below, a `meter`.
 *
 * `ready`: there is something to send; `bodies` returns the request, or several, to be copied. With `onFiles` files
 * can be chosen, or pasted; with `onClear` all can be forgotten.
 */
export function Composer({
  kind,
  draft,
  placeholder,
  running,
  ready = Boolean(draft.trim()),
  nothing = false,
  above = null,
  meter = null,
  onDraft,
  onSend,
  onStop,
  bodies,
  onClear = null,
  onFiles = null,
  children,
}) {
  const field = useRef(null);
  const [copied, copy] = useState(null);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, MOST_PX)}px`;
  }, [draft]);
  const go = (event) => {
    event?.preventDefault();
    onSend();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) go(event);
    if (event.key !== "Escape") return;
    event.preventDefault();
    onStop();
  };
  const onPaste = (event) => {
    if (!onFiles || !event.clipboardData.files.length) return;
    event.preventDefault();
    onFiles([...event.clipboardData.files]);
  };
  return html`<form class=${`composer card ${kind}`} onSubmit=${go}>
    ${children && html`<div class="modes">${children}</div>`}
    ${above}
    <label class="hidden" for="prompt">Your message</label>
    <div class="write">
      ${onFiles && html`<${Paperclip} onFiles=${onFiles} />`}
      <textarea id="prompt" ref=${field} rows="1" value=${draft} onKeyDown=${onKeyDown}
        onPaste=${onPaste} placeholder=${placeholder} onInput=${(event) => onDraft(event.target.value)}></textarea>
      ${
        running
          ? html`<button type="button" class="stop" onClick=${onStop}>Stop</button>`
          : html`<button class="primary" disabled=${!ready}>Send</button>`
      }
    </div>
    <div class="below">
      ${meter}
      <p class="hint">Enter sends, Shift+Enter makes a new line, Escape stops.</p>
      <button type="button" class="quiet small" onClick=${() => copy(bodies())}>Copy request</button>
      ${
        onClear &&
        html`<button type="button" class="quiet small" disabled=${nothing}
          onClick=${(event) => (onClear(), toMessage(event))}>Clear</button>`
      }
    </div>
  </form>
  ${copied && html`<${CopyDialog} body=${copied} onClose=${() => copy(null)} />`}`;
}

function Paperclip({ onFiles }) {
  const field = useRef(null);
  const onChange = () => {
    const files = [...field.current.files];
    field.current.value = "";
    onFiles(files);
  };
  return html`<input ref=${field} type="file" multiple hidden aria-label="Files to attach" onChange=${onChange} />
    <button type="button" class="quiet icon" aria-label="Attach files" title="Attach files"
      onClick=${() => field.current.click()}><${Icon} name="paperclip" /></button>`;
}
