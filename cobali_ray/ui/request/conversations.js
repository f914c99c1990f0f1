// A conversation as a tree of messages: a value, and what can be done with it. No DOM, no storage.

/** How many characters of the first message make a title. */
const TITLE_CHARS = 60;

/** An id that no other tab makes: crypto.randomUUID wants https, this does not. */
export const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** A conversation without messages. Times are milliseconds since 1970. */
export const newConversation = (settings, model, atMs = Date.now()) => ({
  id: newId(),
  title: "",
  titledMs: 0, // when somebody named it; below 0: when that was undone, and it has its first message's words
  pinnedMs: 0, // when it was pinned; below 0: when that was undone
  createdMs: atMs,
  changedMs: atMs,
  settings,
  model,
  setMs: 0, // when somebody changed one of these two
  messages: [], // each with id, parent, role (user or assistant); in order of time
  head: null, // the message that ends the branch in sight
});

export const messageOf = ({ messages }, id) => messages.find((message) => message.id === id) ?? null;

/** Return the branch that ends with a message, from its first one on. */
export function pathTo({ messages }, id) {
  const byId = new Map(messages.map((message) => [message.id, message]));
  const path = [];
  for (let message = byId.get(id); message; message = byId.get(message.parent)) path.push(message);
  return path.reverse();
}

/** What the model reads of a branch: from the last message on that has a `start`. */
export const readPart = (path) => path.slice(Math.max(0, path.findLastIndex(({ start }) => start)));

export const pathOf = (conversation) => pathTo(conversation, conversation.head);

/** Return the messages that stand where this one does, itself among them. */
export const siblingsOf = ({ messages }, { parent }) => messages.filter((other) => other.parent === parent);

/** Add a message behind another (null: as a first one) and look at it. */
export function withMessage(conversation, parent, message, atMs = Date.now()) {
  const before = messageOf(conversation, parent);
  const addedMs = before ? Math.max(atMs, before.atMs + 1) : atMs; // the clock may be behind
  const added = { id: newId(), ...message, parent, atMs: addedMs, changedMs: addedMs };
  const messages = [...conversation.messages, added];
  const title = conversation.title || titleOf(added);
  return { ...conversation, title, messages, head: added.id, changedMs: atMs };
}

/** Change a message in its place. The conversation stays where it is in the list. */
export function withChange(conversation, id, patch, atMs = Date.now()) {
  const messages = conversation.messages.map((message) =>
    message.id === id ? { ...message, ...patch, changedMs: Math.max(atMs, message.changedMs + 1) } : message,
  );
  return { ...conversation, messages };
}

/** Look at a message's branch, where it was written last. */
export function lookAt(conversation, id) {
  const branch = new Set([id]);
  for (const message of conversation.messages) if (branch.has(message.parent)) branch.add(message.id);
  return { ...conversation, head: [...branch].at(-1) };
}

/** Give it a name; an empty one restores that of its first message. */
export function withTitle(conversation, title, atMs = Date.now()) {
  const named = title.trim().slice(0, 200);
  const first = conversation.messages.find(({ role }) => role === "user");
  return { ...conversation, title: named || titleOf(first), titledMs: named ? atMs : -atMs, changedMs: atMs };
}

function titleOf(message) {
  const line = (message?.text ?? "").trim().split("\n")[0].trim() || (message?.files?.[0]?.name ?? "");
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line;
}

/** Of two versions of a message the one to keep: of one stream that which has more of it, else the newer. */
function laterOf(first, second) {
  const same = first.stream && first.stream.id === second.stream?.id;
  const further = same && (first.stream.after - second.stream.after || nResults(first) - nResults(second));
  const by = further || first.changedMs - second.changedMs;
  return by > 0 ? first : second;
}

const nResults = ({ calls = [] }) => calls.filter(({ result }) => result).length;

/**
 * Unite what two tabs or browsers made of one conversation: no message is lost, of two versions the later holds. The
 * branch in sight grows with what the other added behind it.
 */
export function united(stored, mine) {
  if (!stored) return mine;
  const byId = new Map(stored.messages.map((message) => [message.id, message]));
  for (const message of mine.messages) {
    const other = byId.get(message.id);
    byId.set(message.id, other ? laterOf(other, message) : message);
  }
  const messages = inOrder(byId);
  const { title, titledMs } = Math.abs(stored.titledMs) > Math.abs(mine.titledMs) ? stored : mine;
  const { pinnedMs = 0 } = Math.abs(stored.pinnedMs ?? 0) > Math.abs(mine.pinnedMs ?? 0) ? stored : mine;
  const { settings, model, setMs = 0 } = (stored.setMs ?? 0) > (mine.setMs ?? 0) ? stored : mine;
  const behind = pathTo({ messages }, stored.head).some(({ id }) => id === mine.head);
  return {
    ...mine,
    ...{ title, titledMs, pinnedMs, settings, model, setMs, messages },
    head: behind ? stored.head : mine.head,
    changedMs: Math.max(stored.changedMs, mine.changedMs),
  };
}

/** Messages by time, each behind its parent, whose clock may have been ahead. */
function inOrder(byId) {
  const ordered = new Set();
  const add = (message) => {
    if (!message || ordered.has(message)) return;
    add(byId.get(message.parent));
    ordered.add(message);
  };
  [...byId.values()].sort((a, b) => a.atMs - b.atMs).forEach(add);
  return [...ordered];
}

/** Say whether two have the same messages and name. */
export const sameAs = (first, second) =>
  first.title === second.title &&
  first.messages.length === second.messages.length &&
  first.messages.every(({ id, changedMs }, i) => {
    const message = second.messages[i];
    return id === message.id && changedMs === message.changedMs;
  });

/** Return the summary that a list shows of a conversation. */
export const summaryOf = ({ id, title, changedMs, pinnedMs = 0 }) => ({ id, title, changedMs, pinned: pinnedMs > 0 });

const DAY_MS = 24 * 3600 * 1000;

/** Group summaries by how long ago they changed, newest first: `[[word, summaries]]`. */
export function byDay(summaries, nowMs = Date.now()) {
  const today = new Date(nowMs).setHours(0, 0, 0, 0);
  const wordOf = (atMs) => {
    if (atMs >= today) return "Today";
    if (atMs >= today - DAY_MS) return "Yesterday";
    if (atMs >= today - 7 * DAY_MS) return "Last 7 days";
    return atMs >= today - 30 * DAY_MS ? "Last 30 days" : "Older";
  };
  const ordered = [...summaries].sort((a, b) => b.changedMs - a.changedMs);
  const groups = Map.groupBy(ordered, ({ changedMs, pinned }) => (pinned ? "Pinned" : wordOf(changedMs)));
  const pinned = groups.get("Pinned");
  groups.delete("Pinned");
  return [...(pinned ? [["Pinned", pinned]] : []), ...groups];
}

/**
 * Return the messages of a branch as the chat API takes them, from where the model begins to read. An answer that
 * says nothing is left out, and its question with it, as many templates want turns to alternate.
 */
export const apiMessages = (whole) =>
  readPart(whole).flatMap((message, i, path) => {
    if (message.role !== "user") return answerOf(message);
    const next = path[i + 1];
    return next?.role === "assistant" && !answerOf(next).length ? [] : [userOf(message)];
  });

function userOf(message) {
  const { images = [], start } = message;
  const before = start?.summary && `Summary of our conversation until now:\n\n${start.summary}`;
  const text = [before, withFiles(message)].filter(Boolean).join("\n\n");
  if (!images.length) return { role: "user", content: text };
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...(text ? [{ type: "text", text }] : []), ...parts] };
}

/** An answer, and behind it the results of its calls; calls without a result are left out. */
function answerOf({ text, reasoning, calls }) {
  const answered = calls.filter(({ result }) => result);
  if (!text && !reasoning && !answered.length) return [];
  const tool_calls = answered.map(({ id, name, args }) => ({
    id,
    type: "function",
    function: { name, arguments: args },
  }));
  return [
    {
      role: "assistant",
      content: text,
      ...(reasoning && { reasoning_content: reasoning }),
      ...(answered.length && { tool_calls }),
    },
    ...answered.map(({ id, result }) => ({
      role: "tool",
      tool_call_id: id,
      content: result.error === undefined ? result.content : `Error: ${result.error}`,
    })),
  ];
}

/** A message's text, and the files that go with it, each fenced by more backticks than it has itself. */
export function withFiles({ text, files = [] }) {
  const blocks = files.map(({ name, text: inside }) => {
    const longest = Math.max(2, ...(inside.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    const language = /\.([A-Za-z0-9]{1,10})$/.exec(name)?.[1].toLowerCase() ?? "";
    return `File ${name}:\n\n${fence}${language}\n${inside.replace(/\n$/, "")}\n${fence}`;
  });
  return [text, ...blocks].filter(Boolean).join("\n\n");
}
