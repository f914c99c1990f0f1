// Conversations on the server, under the key of this session: what `shelf.js` does in this browser. Loaded on demand.
//
// Each has a version there. A writer names the one it knows; where the server has another, both are united.
import { access, call } from "../parts/api.js";
import { forSession, keep, kept } from "../parts/store.js";
import { isOpen } from "../request/chat.js";
import { summaryOf, united } from "../request/conversations.js";
import { models } from "../request/models.js";

const LOOK_MS = 2000;
const N_AT_ONCE = 6; // as many connections as browsers open

const known = new Map(); // by id, as this tab has it: its version, and the conversation
const writing = new Map(); // by id, the conversations being written
const listed = new Map(); // the version and summary of each, as the server listed them last
const changed = new Set(); // ids of those that others wrote or deleted, until `onOthers` has told of them
let newest = 0; // the highest version listed
let owner = null; // the key that all of this belongs to, and the server's name for its conversations

const address = (id) => `v1/chats/${encodeURIComponent(id)}`;
const json = async (path, options) => (await call(path, options)).json();

/** Belong to the key that is used now; forget what belonged to another. */
export function open() {
  if (isOurs()) return;
  owner = { key: access.get().key, chats: models.get().chats };
  newest = 0;
  known.clear();
  listed.clear();
  changed.clear();
}

const isOurs = () => owner?.key === access.get().key;

/** Ask what has changed. */
async function look() {
  for (let more = true; more; ) {
    const { data, has_more: hasMore } = await json(`v1/chats?after=${newest}`);
    for (const { id, version, summary, deleted } of data) {
      newest = version;
      if (known.get(id)?.version !== version) changed.add(id);
      if (deleted) listed.delete(id);
      else listed.set(id, { version, summary: JSON.parse(summary) });
    }
    more = hasMore;
  }
}

/** Call with the id of each conversation that another browser wrote or deleted, and its summary if it is there. */
export function onOthers(callback) {
  const tell = async (id) => {
    changed.delete(id); // it may change again meanwhile
    if (!listed.has(id)) known.delete(id);
    try {
      await callback(id, listed.get(id)?.summary ?? null);
    } catch (error) {
      changed.add(id);
      throw error;
    }
  };
  const turn = async () => {
    if (document.hidden || access.get().keyNeeded || !isOurs()) return;
    try {
      await look();
      for (const id of changed) await tell(id);
    } catch {
      // The page says elsewhere that the server does not answer.
    }
  };
  const timer = setInterval(turn, LOOK_MS);
  document.addEventListener("visibilitychange", turn);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", turn);
  };
}

/** Return the summaries of all of them; first write what could not be written before. */
export async function summaries() {
  open();
  for (const conversation of Object.values(unsaved())) await write(conversation);
  await look();
  changed.clear();
  return [...listed.values()].map(({ summary }) => summary);
}

export async function readAll() {
  await look();
  const ids = [...listed.keys()];
  const conversations = [];
  for (let i = 0; i < ids.length; i += N_AT_ONCE)
    conversations.push(...(await Promise.all(ids.slice(i, i + N_AT_ONCE).map(read))));
  return conversations.filter(Boolean);
}

/** Return one conversation, or undefined. */
export async function read(id) {
  const here = known.get(id);
  if (here && here.version >= (listed.get(id)?.version ?? 0)) return here.conversation;
  try {
    const { version, data } = await json(address(id));
    known.set(id, { version, conversation: JSON.parse(data) });
    return known.get(id).conversation;
  } catch (error) {
    if (error.status !== 404) throw error;
    known.delete(id);
    return undefined;
  }
}

/**
 * Write a conversation, united with what is there; resolves to that, or undefined if others have deleted it. Where
 * the key has changed meanwhile, this tab keeps it for the next time, as it must not go to the other key. Throws an
 * Error that says what to do.
 */
export async function write(mine) {
  for (;;) {
    if (!isOurs()) {
      keepUnsaved(mine.id, mine);
      return mine;
    }
    const { version = 0, conversation } = known.get(mine.id) ?? {};
    const whole = united(conversation, mine);
    writing.set(mine.id, whole);
    const body = { version, summary: JSON.stringify(summaryOf(whole)), data: JSON.stringify(whole) };
    try {
      const { version: written } = await json(address(mine.id), { body });
      known.set(mine.id, { version: written, conversation: whole });
      keepUnsaved(mine.id, null);
      writing.delete(mine.id);
      return whole;
    } catch (error) {
      if (error.code !== "chat_changed") {
        keepUnsaved(mine.id, whole);
        writing.delete(mine.id);
        throw error;
      }
    }
    known.delete(mine.id);
    if (!(await read(mine.id)) && version) {
      keepUnsaved(mine.id, null);
      writing.delete(mine.id);
      return undefined;
    }
  }
}

/** What could not be sent to the server yet, kept by this tab. */
const unsaved = () => kept(forSession, nameOfUnsaved(), {});
const nameOfUnsaved = () => `unsaved.${owner.chats}`;

/** Keep in this tab what could not be written, or (null) no longer. */
function keepUnsaved(id, conversation) {
  const { [id]: before, ...others } = unsaved();
  if (!conversation && !before) return;
  keep(forSession, nameOfUnsaved(), conversation ? { ...others, [id]: conversation } : others);
}

addEventListener("pagehide", () => writing.forEach((conversation, id) => keepUnsaved(id, conversation)));

/** Delete a conversation, and answers in it that nobody has read to the end. */
export async function remove(id) {
  keepUnsaved(id, null);
  const { messages } = (await read(id)) ?? { messages: [] };
  for (const { stream } of messages.filter((message) => message.stream && isOpen(message))) await forget(stream.id);
  known.delete(id);
  listed.delete(id);
  try {
    await call(address(id), { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) throw error;
  }
}

/** Have the server forget an answer that is whole in its conversation. */
export async function forget(stream) {
  if (!isOurs()) return;
  try {
    await call(`v1/streams/${stream}`, { method: "DELETE" });
  } catch {
    // It is gone already, or goes in time.
  }
}
