// Tool calls of an answer: their arguments, state and results.
import { count } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { Question } from "../request/mcpforms.js";
import { isObject, noteOf } from "../request/toolbox.js";
import { ToolResult } from "../request/tools.js";

const FOLDED_CHARS = 240; // of a result; longer ones are folded
const FOLDED_LINES = 6;

/**
 * `calls` are `{id, name, args, result}` with `{content}` or `{error}` as result, null without one, and
 * `running` while a tool is at work. `open`: the last one is still being written. `onResult(id, result)`
 * takes what somebody types; without it nothing can be typed.
 */
export function Calls({ calls, open = false, caret = null, onResult = null }) {
  return html`<ul class="calls" aria-label="Tool calls">
    ${calls.map((call, i) => {
      const writes = open && i === calls.length - 1;
      return html`<${Call} key=${call.id ?? i} call=${call} writes=${writes} caret=${writes ? caret : null}
        onResult=${onResult} />`;
    })}
  </ul>`;
}

function Call({ call, writes, caret, onResult }) {
  const { id, name, args, result, running, server } = call;
  const answer = (typed) => onResult(id, typed);
  const needsResult = onResult && !writes && !running && !result;
  return html`<li class="call">
    <div class="head">
      <span class="fn" aria-hidden="true">ƒ</span><code>${name}</code>
      <small>${server ? new URL(server).host : noteOf(name)}</small>
      <${State} call=${call} writes=${writes} />
    </div>
    <${Arguments} text=${args} caret=${caret} />
    ${result && html`<${Result} result=${result} folded=${Boolean(server)} />`}
    ${needsResult && server && html`<${Question} call=${call} onResult=${answer} />`}
    ${needsResult && !server && html`<${ToolResult} name=${name} onAnswer=${answer} />`}
  </li>`;
}

const STATES = {
  writing: ["plain", "being written", "The model is still writing the arguments."],
  called: ["plain", "called", "There is no result yet."],
  running: ["wait", "running", "The tool runs in this browser."],
  answered: ["good", "answered", "The model is given this result."],
  failed: ["bad", "failed", "The tool failed. The model is told why."],
};

function State({ call: { result, running }, writes }) {
  const unanswered = writes ? "writing" : running ? "running" : "called";
  const [kind, word, title] =
    STATES[result ? (result.error === undefined ? "answered" : "failed") : unanswered];
  return html`<span class=${`state ${kind}`} title=${title}>${word}</span>`;
}

/** Keys and values once the arguments are complete; what is half written, or no object, as it came. */
function Arguments({ text, caret }) {
  const values = caret ? null : objectOf(text);
  if (!values) return text || caret ? html`<pre class="args" tabindex="0">${text}${caret}</pre>` : null;
  const entries = Object.entries(values);
  if (!entries.length) return html`<p class="muted">no arguments</p>`;
  return html`<dl class="args">
    ${entries.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${nodeOf(value)}</dd></div>`)}
  </dl>`;
}

function objectOf(text) {
  const value = parsed(text || "{}");
  return isObject(value) ? value : null;
}

function nodeOf(value) {
  const nested = value !== null && typeof value === "object";
  return nested ? html`<pre tabindex="0">${JSON.stringify(value, null, 2)}</pre>` : String(value);
}

/** `folded`: even if it is short, as results of other hosts are. */
function Result({ result, folded }) {
  const text = result.error ?? result.content;
  const kind = result.error === undefined ? "result" : "result wrong";
  const body = html`<pre class=${kind} tabindex="0">${pretty(text)}</pre>`;
  if (!folded && text.length <= FOLDED_CHARS && text.split("\n").length <= FOLDED_LINES) return body;
  return html`<details class="fold"><summary>Result, ${count(text.length)} characters</summary>${body}</details>`;
}

/** JSON with its lines, any other text as it is. */
function pretty(text) {
  const values = /^\s*[[{]/.test(text) ? parsed(text) : undefined;
  return values === undefined ? text : JSON.stringify(values, null, 2);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
