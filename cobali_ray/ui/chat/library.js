// The conversations in memory, the one in sight, and the list of all that are kept. No drawing.
import { forSession, keep, kept, makeStore } from "../parts/store.js";
import {
  lookAt,
  newConversation,
  newId,
  pathOf,
  placeOf,
  sameAs,
  summaryOf,
  united,
  withTitle,
} from "../request/conversations.js";
import { play } from "../request/play.js";
import { carry } from "./draft.js";
import { onOthers, read, readAll, remove, write } from "./shelf.js";

const PLACE = "conversation"; // what this tab had in sight before it was loaded again

const NEW = "new-conversation"; // the id of this tab's last one that has no message yet

/** A new conversation, with the draft of the last new one. */
function fresh() {
  const conversation = newConversation(play.get().settings, play.get().model);
  carry(kept(forSession, NEW, null), conversation.id);
  keep(forSession, NEW, conversation.id);
  return conversation;
}

const first = fresh();

export const library = makeStore({
  summaries: [], // of all that are kept
  id: first.id, // the conversation in sight
  held: { [first.id]: first }, // those in memory
  trouble: null, // why something is not kept
  missing: false, // whether the address named a conversation that is not kept here
  deleted: null, // the conversation deleted last
  query: "",
  found: null, // where it is, by conversation; null: nothing is searched for
});

/** The conversation in sight. */
export const current = () => library.get().held[library.get().id];

const saving = new Map(); // by conversation: whether there is more to write
const busy = new Set(); // conversations that something happens to, which stay in memory

/** Keep a conversation in memory until it is released, whichever is in sight. */
export const hold = (id) => busy.add(id);
export const release = (id) => busy.delete(id);

/** Change a conversation that is in memory. It is kept once it has a message. */
export function change(id, turn) {
  const { held } = library.get();
  if (!held[id]) return; // it was deleted
  const conversation = turn(held[id]);
  library.set({ held: { ...held, [id]: conversation } });
  if (!conversation.messages.length) return;
  if (id === library.get().id) {
    keep(forSession, PLACE, id);
    keep(forSession, NEW, null);
    if (library.get().missing) library.set({ missing: false });
  }
  save(id);
}

async function save(id) {
  if (saving.has(id)) {
    saving.set(id, true);
    return;
  }
  saving.set(id, true);
  while (saving.get(id)) {
    saving.set(id, false);
    try {
      const mine = library.get().held[id];
      if (mine) note(id, await write(mine));
      if (library.get().trouble) library.set({ trouble: null });
    } catch (error) {
      library.set({ trouble: error.message });
    }
  }
  saving.delete(id);
}

/** Take what was written of a conversation; null: it is deleted. */
function note(id, whole) {
  const { summaries, held } = library.get();
  const others = summaries.filter((summary) => summary.id !== id);
  library.set({ summaries: whole ? [summaryOf(whole), ...others] : others });
  if (whole && held[id]) library.set({ held: { ...held, [id]: united(whole, held[id]) } });
}

/** Read what is kept, follow what other tabs do, and look again at what this tab had in sight. */
export async function openLibrary() {
  onOthers(async (id) => note(id, (await read(id)) ?? null));
  try {
    const all = await readAll();
    const { summaries } = library.get();
    const known = new Set(summaries.map(({ id }) => id));
    library.set({ summaries: [...summaries, ...all.filter(({ id }) => !known.has(id)).map(summaryOf)] });
    const place = named() ?? kept(forSession, PLACE, null);
    const before = all.find(({ id }) => id === place);
    if (before && !current().messages.length) see(before);
    else if (named() && named() !== "new" && named() !== current().id) library.set({ missing: true });
  } catch (error) {
    library.set({ trouble: error.message });
  }
}

/** The conversation that the address names, "new" for a new one; null: none. */
const named = () => /^#chat\/([\w-]+)$/.exec(location.hash)?.[1] ?? null;

/** What the address says of a conversation. */
export const addressOf = ({ id, messages }) => `#chat/${messages.length ? id : "new"}`;

/** Look at what the address names, as after Back and Forward. */
export async function seeNamed() {
  const id = named();
  if (!id || id === current().id || (id === "new" && !current().messages.length)) return;
  if (id === "new") see(fresh());
  else if (!(await show(id))) library.set({ missing: true });
}

function see(conversation) {
  const { id: left, held } = library.get();
  const stays = Object.values(held).filter(({ id }) => id !== left || busy.has(id) || saving.has(id));
  keep(forSession, PLACE, conversation.messages.length ? conversation.id : "new");
  const all = [conversation, ...stays]; // what is in memory already is newer
  library.set({ id: conversation.id, missing: false, held: Object.fromEntries(all.map((one) => [one.id, one])) });
}

/** Look at a conversation that is kept; say whether it is. */
export async function show(id) {
  const conversation = await lookUp(id);
  if (conversation) see(conversation);
  return Boolean(conversation);
}

/** Look at a conversation on the branch of a message. */
export async function showMessage(id, message) {
  await show(id);
  if (!pathOf(current()).some((other) => other.id === message)) change(id, (was) => lookAt(was, message));
}

/** Return a conversation, from memory or as it is kept. */
export const lookUp = async (id) => library.get().held[id] ?? (await read(id));

/** Begin a new conversation; one without messages is new already. */
export function beginNew() {
  if (current().messages.length) see(fresh());
}

/** Give a conversation a name. */
export async function rename(id, title) {
  const conversation = await lookUp(id);
  if (!conversation) return;
  const { held } = library.get();
  library.set({ held: { ...held, [id]: withTitle(conversation, title) } });
  await save(id);
}

/** Pin a conversation above the others, or no longer. */
export async function pin(id, pinned, atMs = Date.now()) {
  const conversation = await lookUp(id);
  if (!conversation) return;
  const { held } = library.get();
  library.set({ held: { ...held, [id]: { ...conversation, pinnedMs: pinned ? atMs : -atMs } } });
  await save(id);
}

/** Delete a conversation, and remember it until the next one is. */
export async function discard(id) {
  const deleted = await lookUp(id);
  if (library.get().id === id) see(fresh());
  const { [id]: gone, ...held } = library.get().held;
  library.set({ held, deleted });
  await tried(() => remove(id));
  note(id, null);
}

/** Bring back what was deleted last. */
export async function undo() {
  const { deleted } = library.get();
  library.set({ deleted: null });
  await tried(async () => note(deleted.id, await write(deleted)));
}

/** Return every conversation that is kept, newest first. */
export const everything = async () => (await readAll()).sort((a, b) => b.changedMs - a.changedMs);

/**
 * Add conversations from elsewhere: `{nNew, nKnown}`. None is overwritten: where one of the same id differs, the
 * other comes beside it.
 */
export async function add(conversations) {
  const known = new Map((await readAll()).map((one) => [one.id, one]));
  let nNew = 0;
  for (const one of conversations) {
    const other = known.get(one.id);
    if (other && sameAs(other, one)) continue;
    const added = other ? { ...one, id: newId() } : one;
    note(added.id, await write(added));
    nNew += 1;
  }
  return { nNew, nKnown: conversations.length - nNew };
}

/** Search titles and texts. */
export async function search(query) {
  library.set({ query });
  if (!query.trim()) {
    library.set({ found: null });
    return;
  }
  await tried(async () => {
    const places = (await readAll()).map((one) => [one.id, placeOf(one, query)]);
    if (library.get().query === query) library.set({ found: new Map(places.filter(([, place]) => place)) });
  });
}

async function tried(work) {
  try {
    await work();
  } catch (error) {
    library.set({ trouble: error.message });
  }
}
