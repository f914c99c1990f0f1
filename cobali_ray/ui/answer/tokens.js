// Tokens of markdown as elements. No string ever becomes HTML, so what a model says cannot run.
import { html } from "../parts/preact.js";
import { Code } from "./code.js";
import { Formula } from "./formula.js";

const MOST_NESTED = 24; // deeper ones are shown as they were written
const SAFE = /^(?:https?:\/\/|mailto:)/i;
const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;
const INNERMOST = { growing: false, caret: null };

/** One block. `growing` says that more text may come, and the `caret` goes behind its last character. */
export function blockOf(token, key, end = INNERMOST, depth = 0) {
  if (depth > MOST_NESTED) return html`<p key=${key}>${token.raw}${end.caret}</p>`;
  const inside = () => blocksOf(token.tokens, end, depth + 1);
  switch (token.type) {
    case "paragraph":
      return html`<p key=${key}>${inlineOf(token, end)}</p>`;
    case "text": // of a tight list
      return html`<span key=${key}>${token.tokens ? inlineOf(token, end) : [plain(token.text), end.caret]}</span>`;
    case "heading":
      return html`<h3 key=${key} class=${`h${token.depth}`}>${inlineOf(token, end)}</h3>`;
    case "code":
      return html`<${Code} key=${key} lang=${langOf(token)} text=${codeOf(token, end)} ...${end} />`;
    case "blockquote":
      return html`<blockquote key=${key}>${inside()}</blockquote>`;
    case "list":
      return listOf(token, key, end, depth);
    case "table":
      return tableOf(token, key, end);
    case "mathblock":
      return html`<${Formula} key=${key} text=${token.text} block=${true} caret=${end.caret} />`;
    case "hr":
      return [html`<hr key=${key} />`, end.caret];
    case "checkbox":
      return html`<input key=${key} type="checkbox" disabled checked=${token.checked}
        aria-label=${token.checked ? "done" : "to do"} />`;
    case "space":
    case "def":
      return end.caret;
    default:
      return html`<p key=${key}>${token.raw}${end.caret}</p>`;
  }
}

function blocksOf(tokens, end, depth) {
  if (!tokens.length) return end.caret;
  return tokens.map((token, i) => blockOf(token, i, i === tokens.length - 1 ? end : INNERMOST, depth));
}

function listOf({ ordered, start, items }, key, end, depth) {
  const drawn = items.map(
    (item, i) => html`<li key=${i} class=${item.task ? "task" : null}>
      ${blocksOf(item.tokens, i === items.length - 1 ? end : INNERMOST, depth + 1)}</li>`,
  );
  return ordered ? html`<ol key=${key} start=${start}>${drawn}</ol>` : html`<ul key=${key}>${drawn}</ul>`;
}

function tableOf({ header, rows }, key, end) {
  const last = rows.at(-1)?.at(-1) ?? header.at(-1);
  const cell = (token, i) => {
    const content = inlineOf(token, token === last ? end : INNERMOST);
    const align = token.align && `align-${token.align}`;
    return token.header
      ? html`<th key=${i} scope="col" class=${align}>${content}</th>`
      : html`<td key=${i} class=${align}>${content}</td>`;
  };
  return html`<div key=${key} class="table" tabindex="0"><table>
    <thead><tr>${header.map(cell)}</tr></thead>
    <tbody>${rows.map((row, i) => html`<tr key=${i}>${row.map(cell)}</tr>`)}</tbody></table></div>`;
}

function inlineOf({ tokens }, { caret = null } = INNERMOST, depth = 0) {
  return [...tokens.map((token, i) => spanOf(token, i, depth)), caret];
}

function spanOf(token, key, depth) {
  if (depth > MOST_NESTED) return token.raw;
  const inside = () => inlineOf(token, INNERMOST, depth + 1);
  switch (token.type) {
    case "text":
      return token.tokens ? inside() : plain(token.text);
    case "escape":
      return token.text;
    case "strong":
      return html`<strong key=${key}>${inside()}</strong>`;
    case "em":
      return html`<em key=${key}>${inside()}</em>`;
    case "del":
      return html`<del key=${key}>${inside()}</del>`;
    case "codespan":
      return html`<code key=${key}>${token.text}</code>`;
    case "math":
      return html`<${Formula} key=${key} text=${token.text} />`;
    case "br":
      return html`<br key=${key} />`;
    case "link":
      return linkOf(token, key, inside());
    case "image": // loading it would tell another host that somebody reads this
      return linkOf(token, key, token.text ? plain(token.text) : token.href);
    default:
      return token.raw;
  }
}

/** A link to elsewhere, or only its words: what runs or looks like a part of this page is no link. */
function linkOf({ href, title }, key, content) {
  if (!SAFE.test(href)) return html`<span key=${key}>${content}</span>`;
  return html`<a key=${key} href=${href} title=${title} target="_blank" rel="noopener noreferrer">${content}</a>`;
}

/** The code of a block; the first two characters of the fence that ends it are not shown as code. */
const codeOf = ({ text }, { growing }) => (growing ? text.replace(/(?:^|\n)(?:`{1,2}|~{1,2})$/, "") : text);

const langOf = ({ lang }) => /^[^\s{,]{1,30}/.exec(lang ?? "")?.[0] ?? "";

const characters = new Map();

/** Text with its entities (`&lt;`) as the characters they stand for. */
const plain = (text) => (text.includes("&") ? text.replaceAll(ENTITY, characterOf) : text);

function characterOf(entity) {
  if (!characters.has(entity)) {
    const { body } = new DOMParser().parseFromString(entity, "text/html"); // nothing but letters and digits
    characters.set(entity, body.textContent);
  }
  return characters.get(entity);
}
