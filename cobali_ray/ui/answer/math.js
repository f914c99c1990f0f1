// Where there is math in a text: no part of it is emphasis, an escape or a link.

const PARAGRAPH = /\n[ \t]*\n/; // ends what nobody closed
const INLINE = [
  /^\$\$[^$\n]+\$\$/,
  /^\$(?![\s$])(?:\\.|[^$\\\n])*?(?:\\.|[^\s$\\])\$(?!\d)/, // "$5 and $10" is money
  /^\\\((?:(?!\\\))[\s\S])+\\\)/,
  /^\\\[(?:(?!\\\])[\s\S])+\\\]/,
];

/** A block opened by `$$` or `\[`, up to where it is closed, or the paragraph ends. */
function blockAt(source) {
  const opening = /^ {0,3}(\$\$|\\\[)/.exec(source);
  if (!opening) return undefined;
  const close = opening[1] === "$$" ? "$$" : "\\]";
  const gap = source.search(PARAGRAPH);
  const paragraph = gap < 0 ? source : source.slice(0, gap);
  const closed = paragraph.indexOf(close, opening[0].length);
  if (closed < 0) return tokenOf("mathblock", paragraph);
  const behind = /^[ \t]*(?:\n|$)/.exec(source.slice(closed + 2)); // else it is a part of a sentence
  return behind ? tokenOf("mathblock", source.slice(0, closed + 2) + behind[0]) : undefined;
}

function inlineAt(source) {
  const match = INLINE.map((pattern) => pattern.exec(source)).find(Boolean);
  return match && tokenOf("math", match[0]);
}

const tokenOf = (type, raw) => ({ type, raw, text: raw.trim() });

const firstOf = (pattern) => (source) => {
  const index = source.search(pattern);
  return index < 0 ? undefined : index;
};

/** The extension of marked. */
export const math = {
  extensions: [
    { name: "mathblock", level: "block", start: firstOf(/\n {0,3}(?:\$\$|\\\[)/), tokenizer: blockAt },
    { name: "math", level: "inline", start: firstOf(/\$|\\[([]/), tokenizer: inlineAt },
  ],
};
