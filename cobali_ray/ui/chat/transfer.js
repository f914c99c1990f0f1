// Many conversations at once: exported, imported, moved from this browser to the server. Loaded on demand.
import { newId, sameAs } from "../request/conversations.js";
import { note, reopen, saved } from "./library.js";
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
