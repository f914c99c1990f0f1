// How much of a model's context a branch takes, and where it could begin instead. No DOM.
import { readPart, withFiles } from "./conversations.js";

const CHARS_PER_TOKEN = 4; // where the server has not counted
const FREE_SHARE = 0.5; // of the context, once the oldest are gone

/** About how many tokens each message has that the model reads: as the server counted them, else by its length. */
function tokensOf(path) {
  let before = 0; // what the answers so far had in their context
  const all = path.map((message, i) => {
    const usage = message.role === "user" ? path[i + 1]?.usage : message.usage;
    const own = message.role === "user" ? usage?.prompt_tokens - before : usage?.completion_tokens;
    if (message.role !== "user" && usage) before = usage.prompt_tokens + usage.completion_tokens;
    return own > 0 ? own : Math.ceil(lengthOf(message) / CHARS_PER_TOKEN);
  });
  return all.slice(path.length - readPart(path).length);
}

const lengthOf = (message) =>
  (message.role === "user" ? withFiles(message) : `${message.text}${message.reasoning ?? ""}`).length;

const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);

/** About how many tokens the next request has: the branch, and what is written and attached. */
export function nextTokens(path, { text = "", files = [] } = {}) {
  const attached = sum(files.map(({ nTokens, text: inside }) => nTokens ?? inside.length / CHARS_PER_TOKEN));
  return sum(tokensOf(path)) + Math.ceil(text.length / CHARS_PER_TOKEN + attached);
}

/**
 * Return the message that the model could begin to read with so that half of its context is free, or the last
 * question where that is too little; null: there is nothing before that.
 */
export function laterStart(path, nMost) {
  const read = readPart(path);
  const tokens = tokensOf(path);
  const later = read.flatMap(({ role }, i) => (role === "user" && i > 0 ? [i] : []));
  const at = later.find((i) => sum(tokens.slice(i)) <= nMost * FREE_SHARE) ?? later.at(-1);
  return at === undefined ? null : read[at];
}
