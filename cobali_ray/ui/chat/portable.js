// Conversations and presets as files: JSON to take elsewhere and back, a page to hand on, Markdown to read. No DOM.
import { newId, pathOf, withFiles } from "../request/conversations.js";

const VERSION = 1;
export const MOST_BYTES = 64 * 1024 * 1024;
const MOST_MESSAGES = 10_000;
const SANE_ID = /^[\w-]{1,64}$/; // as the server takes it

/** Of the element of a shared page that has its conversation. */
export const DATA_ID = "cobali-ray-conversations";

const formatOf = (what) => `cobali_ray ${what}`;

/** Write things of a kind, such as presets, as JSON. */
export const written = (what, things) =>
  `${JSON.stringify({ format: formatOf(what), version: VERSION, [what]: things }, null, 2)}\n`;

/** Read what `written` wrote. Throws an Error that says what is wrong. */
export function read(what, text) {
  let whole;
  try {
    whole = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}.`);
  }
  if (whole?.format !== formatOf(what))
    throw new Error(`This file holds no ${what}: its format is not "${formatOf(what)}".`);
  if (whole.version !== VERSION)
    throw new Error(
      `Version ${JSON.stringify(whole.version)} of the format is not supported, only ${VERSION}.`,
    );
  return whole[what];
}

export const asJson = (conversations) => written("conversations", conversations);

/** Read what `asJson` wrote, alone or in a shared page. Takes all of a file or nothing, and says what is wrong. */
export function fromJson(text) {
  const conversations = read("conversations", /^\s*<!doctype html>/i.test(text) ? inPage(text) : text);
  if (!Array.isArray(conversations)) throw new Error("conversations is not a list.");
  return conversations.map(conversationOf);
}

function inPage(text) {
  const data = text.split(`id="${DATA_ID}">`)[1]?.split("<")[0]; // share.js writes no such sign in it
  if (!data) throw new Error("This page contains no conversation.");
  return data;
}

const is = (type) => (value) => typeof value === type;
const [text, number] = [is("string"), Number.isFinite];
const object = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const textOrNull = (value) => value === null || text(value);
const optional = (check) => (value) => value === undefined || value === null || check(value);
const listOf = (shape) => (value) =>
  Array.isArray(value) && value.every((item) => object(item) && fits(item, shape) === null);

const CONVERSATION = {
  id: text,
  title: text,
  titledMs: number,
  createdMs: number,
  changedMs: number,
  settings: object,
  model: text,
  pinnedMs: optional(number),
  setMs: optional(number),
  messages: Array.isArray,
  head: textOrNull,
};
const MESSAGE = { id: text, parent: textOrNull, atMs: number, changedMs: number, text };
const FILE = { name: text, size: number, text, nTokens: optional(number) };
const IMAGE = { name: text, size: number, url: (value) => text(value) && value.startsWith("data:image/") };
const CALL = {
  id: textOrNull,
  name: text,
  args: text,
  server: optional((value) => text(value) && URL.canParse(value)),
  result: optional((value) => object(value) && text(value.error === undefined ? value.content : value.error)),
};
const ROLES = {
  user: { files: optional(listOf(FILE)), images: optional(listOf(IMAGE)), start: optional(object) },
  assistant: {
    status: text,
    part: textOrNull,
    reasoning: text,
    reasonedS: number,
    calls: listOf(CALL),
    nAnswers: number,
    sentS: number,
    ttftS: optional(number),
    lastS: optional(number),
    nDeltas: number,
    finishReason: textOrNull,
    usage: optional(object),
    timings: optional(object),
    error: optional((value) => object(value) && text(value.message)),
    requestId: textOrNull,
    model: optional(text),
    tokens: optional(listOf({ text, logprob: number, top: Array.isArray })),
    pauses: optional(listOf({ why: text, tookS: number })),
  },
};

const areTexts = (value) => Array.isArray(value) && value.every(text);
const areTools = (value) =>
  object(value) && text(value.own) && [value.offered, value.servers ?? []].every(areTexts);

/** Return the name of a field that does not fit a shape, or null. */
const fits = (value, shape) => Object.keys(shape).find((name) => !shape[name](value[name])) ?? null;

const picked = (value, shape) =>
  Object.fromEntries(
    Object.keys(shape).flatMap((name) => (value[name] === undefined ? [] : [[name, value[name]]])),
  );

const SETTINGS = { tools: areTools, ignore_eos: is("boolean"), words: is("boolean") }; // the others are texts

/** Keep of settings from elsewhere those that are valid. */
export const knownSettings = (settings) =>
  Object.fromEntries(
    Object.entries(settings).filter(([name, value]) =>
      (Object.hasOwn(SETTINGS, name) ? SETTINGS[name] : text)(value),
    ),
  );

const saneId = (id) => (SANE_ID.test(id) ? id : newId());

function conversationOf(value, index) {
  const where = `Conversation ${index + 1}`;
  if (!object(value)) throw new Error(`${where} is not an object.`);
  const wrong = fits(value, CONVERSATION);
  if (wrong) throw new Error(`${where}: ${wrong} is missing or invalid.`);
  if (value.messages.length > MOST_MESSAGES)
    throw new Error(`${where} has ${value.messages.length} messages; at most ${MOST_MESSAGES} are allowed.`);
  const ids = new Map([[null, null]]); // of its messages: there, and here
  const messages = value.messages.map((message, i) => {
    const place = `${where}, message ${i + 1}`;
    if (!object(message)) throw new Error(`${place} is not an object.`);
    if (!Object.hasOwn(ROLES, message.role)) throw new Error(`${place}: role must be user or assistant.`);
    const shape = { ...MESSAGE, ...ROLES[message.role] };
    const bad = fits(message, shape);
    if (bad) throw new Error(`${place}: ${bad} is missing or invalid.`);
    if (ids.has(message.id)) throw new Error(`${place}: another message has the same id.`);
    if (!ids.has(message.parent)) throw new Error(`${place}: its parent is not an earlier message.`);
    ids.set(message.id, saneId(message.id));
    const { id, parent } = message;
    return { role: message.role, ...picked(message, shape), id: ids.get(id), parent: ids.get(parent) };
  });
  if (!ids.has(value.head)) throw new Error(`${where}: head is not one of its messages.`);
  const known = { id: saneId(value.id), head: ids.get(value.head), settings: knownSettings(value.settings) };
  return { ...picked(value, CONVERSATION), ...known, messages };
}

const WRITERS = {
  json: (conversation) => asJson([conversation]),
  md: asMarkdown,
  html: async (conversation) => (await import("./share.js")).asPage(conversation),
};

/** Write one conversation as a file of a kind, one of WRITERS: its text and its name. */
export const asFile = async (conversation, kind) => [
  await WRITERS[kind](conversation),
  fileName(conversation.title, kind),
];

function asMarkdown(conversation) {
  const { title, settings } = conversation;
  const parts = pathOf(conversation).map((message) =>
    message.role === "user"
      ? `## You\n\n${asText(message)}`
      : `## ${message.model || "Assistant"}\n\n${answerText(message)}`,
  );
  const system = settings.system?.trim() ? [`> ${settings.system.trim().replaceAll("\n", "\n> ")}`] : [];
  return `${[`# ${title}`, ...system, ...parts].join("\n\n")}\n`;
}

/** The text of a user's message, files included. */
export function asText(message) {
  const images = (message.images ?? []).map(({ name }) => `(image ${name})`);
  return [withFiles(message), ...images].filter(Boolean).join("\n\n");
}

function answerText({ text: answer, calls }) {
  const called = calls.map(({ name, args, result }) => {
    const output = result ? `\n${result.error === undefined ? result.content : `Error: ${result.error}`}` : "";
    return `\`\`\`\n${name}(${args})${output}\n\`\`\``;
  });
  return [answer, ...called].filter(Boolean).join("\n\n") || "(no answer)";
}

const fileName = (title, ending) =>
  `${
    title
      .replaceAll(/[^\p{L}\p{N}]+/gu, "-")
      .replaceAll(/^-|-$/g, "")
      .slice(0, 60) || "conversation"
  }.${ending}`;
