// Markdown into blocks of elements, and of a text that grows only the last ones anew. Loaded on demand.
import { html } from "../parts/preact.js";
import { Lexer, Marked } from "../vendor/marked-18.2.1.js";
import { math } from "./math.js";
import { blockOf } from "./tokens.js";

// HTML is text like any other. A line of dashes is a line, and no heading of what stands above it.
const never = () => undefined;
const without = { html: never, tag: never, lheading: never };
const { defaults } = new Marked({ gfm: true, breaks: true, tokenizer: without }, math);

/**
 * Return a function from a text to its elements; the next text usually begins with the one before.
 *
 * A block is finished once another one began below it on a line of its own. Finished blocks are not read again
 * while the text grows. Its end reads all of it once more: a link may have been defined below its use.
 */
export function makeBlocks() {
  let finished = []; // {raw, node}
  let before = ""; // their text
  let links = {};
  return (source, growing, caret) => {
    const text = source.replaceAll(/\r\n?/g, "\n");
    const goesOn = growing && text.startsWith(before);
    const kept = goesOn ? finished : [];
    try {
      const { tokens, links: newLinks } = read(text.slice(goesOn ? before.length : 0), goesOn ? links : {});
      const sameLinks = Object.keys(newLinks).length === Object.keys(links).length;
      const blocks = tokens.map((token, i) => {
        const old = goesOn ? null : finished[i];
        if (old?.raw === token.raw && sameLinks) return old;
        const last = i === tokens.length - 1;
        return {
          raw: token.raw,
          node: blockOf(token, kept.length + i, { growing: growing && last, caret: last && caret }),
        };
      });
      const n = growing ? nFinished(tokens) : blocks.length;
      finished = [...kept, ...blocks.slice(0, n)];
      before = finished.map(({ raw }) => raw).join("");
      links = newLinks;
      const open = blocks.slice(n).map(({ node }) => node);
      if (!tokens.length && caret) open.push(html`<p key="caret">${caret}</p>`);
      return [...finished.map(({ node }) => node), ...open];
    } catch {
      return [html`<div key="plain" class="plain">${text}${caret}</div>`]; // nested deeper than the stack
    }
  };
}

function read(text, links) {
  const lexer = new Lexer(defaults);
  Object.assign(lexer.tokens.links, links);
  const tokens = lexer.lex(text);
  return { tokens: joined(tokens), links: tokens.links };
}

/** Blocks with the empty lines behind them as part of their text. */
function joined(tokens) {
  const blocks = [];
  for (const token of tokens) {
    if (token.type === "space" && blocks.length) blocks.at(-1).raw += token.raw;
    else blocks.push(token);
  }
  return blocks;
}

function nFinished(tokens) {
  const last = tokens.at(-1)?.raw ?? "";
  return Math.max(0, tokens.length - (last.includes("\n") ? 1 : 2));
}
