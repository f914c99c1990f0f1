// The conversations in memory, the one in sight, and the list of all that are kept. No drawing.
import { forSession, keep, kept, makeStore } from "../parts/store.js";
import { newConversation, summaryOf, united, withTitle } from "../request/conversations.js";
import { models } from "../request/models.js";
import { play } from "../request/params.js";
import { carry } from "./draft.js";
import { isOnServer, places, shelf } from "./place.js";

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
  matches: null, // of the search, by conversation: where in it; null: nothing is searched for
});

export const current = () => library.get().held[library.get().id];

const AGAIN_MS = 5000; // until what the server did not take is written again

const saving = new Map(); // by conversation: whether there is more to write, and when that is done
const busy = new Map(); // conversations with work under way, which stay in memory: what stops each work

/** Keep a conversation in memory until it is released, whichever is in sight; `stop` is called if it is deleted. */
export const hold = (id, stop) => busy.set(id, new Set(busy.get(id)).add(stop));

export function release(id, stop) {
  busy.get(id).delete(stop);
  if (!busy.get(id).size) busy.delete(id);
}

/** Change a conversation that is in memory. It is kept once it has a message; resolves to whether it was. */
export async function change(id, turn) {
  const { held } = library.get();
  if (!held[id]) return false; // it was deleted
  const conversation = turn(held[id]);
  library.set({ held: { ...held, [id]: conversation } });
  if (!conversation.messages.length) return false;
  if (id === library.get().id) {
    keep(forSession, PLACE, id);
    keep(forSession, NEW, null);
    if (library.get().missing) library.set({ missing: false });
  }
  return save(id);
}

function save(id) {
  if (saving.has(id)) saving.get(id).more = true;
  else {
    const work = { more: true };
    saving.set(id, work);
    work.done = saveAll(id, work);
  }
  return saving.get(id).done;
}

/** Resolves once what is being written now is stored. */
export const saved = () => Promise.all([...saving.values()].map(({ done }) => done));

async function saveAll(id, work) {
  let stored = false;
  while (work.more) {
    work.more = false;
    try {
      const { write } = await shelf();
      const mine = library.get().held[id];
      const whole = mine && (await write(mine));
      stored = Boolean(whole);
      if (library.get().held[id]) note(id, whole); // else another shelf has been opened
      if (library.get().trouble) library.set({ trouble: null });
    } catch (error) {
      stored = false;
      library.set({ trouble: error.message });
      if (error.status === 0 || error.status >= 500) setTimeout(() => save(id), AGAIN_MS);
    }
  }
  saving.delete(id);
  return stored;
}

/** Take a conversation as it was stored; null: it was deleted. */
export function note(id, whole) {
  list(id, whole && summaryOf(whole));
  const { held } = library.get();
  if (!whole) lose(id);
  else if (held[id]) library.set({ held: { ...held, [id]: united(whole, held[id]) } });
}

/** Forget a conversation that was deleted, and stop what works on it. */
function lose(id) {
  for (const stop of busy.get(id) ?? []) stop();
  if (library.get().id === id) see(fresh());
  const { [id]: lost, ...held } = library.get().held;
  library.set({ held });
}

function list(id, summary) {
  const others = library.get().summaries.filter((other) => other.id !== id);
  library.set({ summaries: summary ? [summary, ...others] : others });
}

let opened = { name: null, chats: null, leave: () => {} }; // the shelf that is read, and that of the key
const shelfName = () => (isOnServer() ? models.get().chats : "");

/** Read what is kept, follow what others do, and look at a conversation, or again at what this tab had in sight. */
export async function openLibrary(startId = null) {
  opened.leave();
  try {
    const { onOthers, summaries: readSummaries, read } = await shelf();
    const ends = [models, places].map((store) => store.watch(reopen));
    const unfollow = onOthers(async (id, summary) => {
      const isHeld = id in library.get().held;
      const whole = summary === null || (summary && !isHeld) ? null : await read(id);
      if (shelfName() !== opened.name) return; // moved to the other shelf, not deleted
      if (summary && !isHeld) list(id, summary);
      else note(id, whole);
    });
    const { chats } = models.get();
    opened = { name: shelfName(), chats, leave: () => [...ends, unfollow].forEach((end) => end()) };
    const all = await readSummaries();
    const { summaries } = library.get();
    const knownIds = new Set(summaries.map(({ id }) => id));
    library.set({ summaries: [...summaries, ...all.filter(({ id }) => !knownIds.has(id))] });
    const place = startId ?? named() ?? kept(forSession, PLACE, null);
    const before = all.some(({ id }) => id === place) && (await read(place));
    if (before && !current().messages.length) see(before);
    else if (named() && named() !== "new" && named() !== current().id) library.set({ missing: true });
  } catch (error) {
    library.set({ trouble: error.message });
  }
}

/** Read another shelf, if the key or the choice of place has changed; with the same key, answers go on there. */
export function reopen() {
  const { chats } = models.get();
  const sameKey = chats === opened.chats;
  opened.chats = chats;
  if (shelfName() === opened.name) return;
  opened.name = shelfName();
  const { id } = current();
  const stay = Object.values(library.get().held).filter((one) => sameKey && busy.has(one.id));
  const conversation = fresh();
  const held = Object.fromEntries([conversation, ...stay].map((one) => [one.id, one]));
  library.set({ summaries: [], id: conversation.id, held, deleted: null });
  openLibrary(id);
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
  library.set({ id: conversation.id, missing: false, held: Object.fromEntries(all.map((item) => [item.id, item])) });
}

/** Look at a stored conversation; say whether it exists. */
export async function show(id) {
  const conversation = await lookUp(id);
  if (conversation) see(conversation);
  return Boolean(conversation);
}

/** Return a conversation, from memory or from its shelf. */
export const lookUp = async (id) => library.get().held[id] ?? (await shelf()).read(id);

/** Begin a new conversation; one without messages is new already. */
export function beginNew() {
  if (current().messages.length) see(fresh());
}

/** Change a conversation that is kept, whether it is in memory or not. */
async function alter(id, turn) {
  const conversation = await lookUp(id);
  if (!conversation) return;
  library.set({ held: { ...library.get().held, [id]: turn(conversation) } });
  await save(id);
}

export const rename = (id, title) => alter(id, (was) => withTitle(was, title));

/** Pin a conversation above the others, or no longer. */
export const pin = (id, pinned, atMs = Date.now()) =>
  alter(id, (was) => ({ ...was, pinnedMs: pinned ? atMs : -atMs }));

/** Delete a conversation, and remember it until the next one is. */
export async function discard(id) {
  library.set({ deleted: await lookUp(id) });
  lose(id);
  await saving.get(id)?.done;
  await tried(async () => (await shelf()).remove(id));
  note(id, null);
}

/** Do something; say where it fails why. */
export async function tried(work) {
  try {
    await work();
  } catch (error) {
    library.set({ trouble: error.message });
  }
}
