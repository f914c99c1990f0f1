// What is done with conversations now and then: exported, imported, moved, searched, brought back. Loaded on demand.
import { lookAt, newId, pathOf, sameAs } from "../request/conversations.js";
import { change, current, library, note, reopen, saved, show, tried } from "./library.js";
import { choose, shelf } from "./place.js";

/** Return every conversation that is kept, newest first. */
export const everything = async () => (await (await shelf()).readAll()).sort((a, b) => b.changedMs - a.changedMs);

/**
 * Add conversations from elsewhere: `{nNew, nKnown}`. None is overwritten: one that differs from the stored one of
 * its id is added under a new id.
 */
export async function add(conversations) {
  const { readAll, write } = await shelf();
  const stored = new Map((await readAll()).map((conversation) => [conversation.id, conversation]));
  let nNew = 0;
  for (const conversation of conversations) {
    const other = stored.get(conversation.id);
    if (other && sameAs(other, conversation)) continue;
    const added = other ? { ...conversation, id: newId() } : conversation;
    note(added.id, await write(added));
    nNew += 1;
  }
  return { nNew, nKnown: conversations.length - nNew };
}

/** Keep conversations on the server, and move those of this browser there; or keep them in this browser. */
export async function keepOnServer(onServer) {
  const { readAll, remove } = await import("./shelf.js");
  const { open, write } = await import("./served.js");
  open();
  if (onServer) for (const conversation of await readAll()) await write(conversation);
  await saved();
  choose(onServer);
  reopen();
  if (!onServer) return;
  await saved(); // what was on its way into this browser
  for (const conversation of await readAll()) {
    await write(conversation);
    await remove(conversation.id);
  }
}

const BESIDE = 40; // characters shown beside what was searched for

/**
 * Where a text is in a conversation, or null: `{message, parts}`, the id of the newest message that has it, and what
 * stands there before it, itself and behind it; both null where only the title or a file's name has it.
 */
function placeOf({ title, messages }, words) {
  const needle = words.trim().toLowerCase();
  const at = (text) => (text ?? "").toLowerCase().indexOf(needle);
  const hit = messages.findLast(({ text }) => at(text) >= 0);
  if (!hit) {
    const named = at(title) >= 0 || messages.some(({ files = [] }) => files.some(({ name }) => at(name) >= 0));
    return named ? { message: null, parts: null } : null;
  }
  const from = at(hit.text);
  const to = from + needle.length;
  const before = hit.text.slice(Math.max(0, from - BESIDE), from);
  return { message: hit.id, parts: [before, hit.text.slice(from, to), hit.text.slice(to, to + BESIDE)] };
}

export async function search(query) {
  if (!query.trim()) {
    library.set({ matches: null });
    return;
  }
  await tried(async () => {
    const conversations = await (await shelf()).readAll();
    const hits = conversations.map((conversation) => [conversation.id, placeOf(conversation, query)]);
    if (library.get().query === query) library.set({ matches: new Map(hits.filter(([, place]) => place)) });
  });
}

export async function showMessage(id, message) {
  await show(id);
  if (!pathOf(current()).some((other) => other.id === message)) change(id, (was) => lookAt(was, message));
}

export async function undo() {
  const { deleted } = library.get();
  library.set({ deleted: null });
  await tried(async () => note(deleted.id, await (await shelf()).write(deleted)));
}
