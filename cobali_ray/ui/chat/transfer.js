// Many conversations at once: all for a file, those of a file, from this browser to the server. Loaded on demand.
import { newId, sameAs } from "../request/conversations.js";
import { note, reopen, saved } from "./library.js";
import { choose, shelf } from "./place.js";

/** Return every conversation that is kept, newest first. */
export const everything = async () => (await (await shelf()).readAll()).sort((a, b) => b.changedMs - a.changedMs);

/**
 * Add conversations from elsewhere: `{nNew, nKnown}`. None is overwritten: where one of the same id differs, the
 * other comes beside it.
 */
export async function add(conversations) {
  const { readAll, write } = await shelf();
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

/** Keep conversations on the server, where those of this browser go, or in this browser. */
export async function keepOnServer(onServer) {
  const { readAll, remove } = await import("./shelf.js");
  const { open, write } = await import("./served.js");
  open();
  if (onServer) for (const one of await readAll()) await write(one);
  await saved();
  choose(onServer);
  reopen();
  if (!onServer) return;
  await saved(); // what was on its way into this browser
  for (const one of await readAll()) {
    await write(one);
    await remove(one.id);
  }
}
