// The forms of tools: which ones a model is offered, and a result that somebody types.
import { html, useRef, useState } from "../parts/preact.js";
import { Servers } from "./mcpforms.js";
import { TOOLS, ownTools } from "./toolbox.js";

const EXAMPLE = `{
  "name": "find_book",
  "description": "Look up a book",
  "parameters": {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"]
  }
}`;

/** Choose tools. `change("tools", value)` keeps what was chosen. */
export function ToolSettings({ settings, change }) {
  const { offered = [], own = "", servers = [] } = settings.tools ?? {};
  const { tools, fault } = ownTools(own);
  const chosen = useRef(null); // the latest choice, also before the next drawing
  chosen.current = { offered, own, servers };
  const keep = (patch) => {
    chosen.current = { ...chosen.current, ...patch };
    change("tools", chosen.current);
  };
  const offer = (name, on) => {
    const others = chosen.current.offered.filter((other) => other !== name);
    keep({ offered: on ? [...others, name] : others });
  };
  return html`<div class="tools" role="group" aria-label="Tools">
    ${TOOLS.map(
      ({ name, title, note, definition }) => html`<label key=${name} class="check">
        <input type="checkbox" name=${`tool-${name}`} checked=${offered.includes(name)}
          onChange=${(event) => offer(name, event.target.checked)} />
        <span>${title} <small><code>${name}</code>: ${definition.function.description};${" "}
          ${note || "runs in this browser"}</small></span></label>`,
    )}
    <${Servers} chosen=${servers} choose=${(urls) => keep({ servers: urls })} />
    <label class="field"><span>Your own tools, as JSON</span>
      <textarea rows="4" name="own-tools" value=${own} placeholder=${EXAMPLE} spellcheck="false"
        aria-invalid=${fault ? "true" : null} aria-describedby="own-tools-hint"
        onInput=${(event) => keep({ own: event.target.value })}></textarea>
      <small id="own-tools-hint" class=${fault ? "wrong" : ""}>${fault || hintOf(tools)}</small></label>
  </div>`;
}

function hintOf(tools) {
  if (!tools.length)
    return "One definition or a list of them. When the model calls one, you type its result.";
  return `Offered: ${tools.map((tool) => tool.function.name).join(", ")}. You type their results.`;
}

/** A form for the result of a call that the page cannot run; `onAnswer` takes `{content}` or `{error}`. */
export function ToolResult({ name, onAnswer }) {
  const [text, setText] = useState("");
  const field = useRef(null);
  const send = (event) => {
    event.preventDefault();
    onAnswer({ content: field.current.value });
  };
  return html`<form onSubmit=${send}>
    <label><span class="hidden">Result of ${name}</span>
      <textarea ref=${field} rows="2" value=${text} placeholder="What does it return? Text or JSON."
        onInput=${(event) => setText(event.target.value)}></textarea></label>
    <div><button class="primary" disabled=${!text.trim()}>Send result</button>
      <button type="button" class="quiet" disabled=${!text.trim()}
        onClick=${() => onAnswer({ error: field.current.value })}>Send as error</button></div>
  </form>`;
}
