// What is being written in each conversation: text, and the files that will go with it. No drawing.
import { forSession, keep, kept, makeStore, tabName } from "../parts/store.js";
import { newId } from "../request/conversations.js";
import { models, modelOf } from "../request/models.js";

/** `queue` has the messages that are sent after the answer under way. */
export const NOTHING = { text: "", files: [], images: [], refusals: [], reading: 0, queue: [] };
const NAME = "drafts";
const MOST_CHARS = 2_000_000; // of what a browser's session has room for; beyond it the files are not kept

const { name, isCopy } = await tabName(newId);

/** This tab's name, by which it knows the answers that it asked for. */
export const TAB = name;

export const drafts = makeStore({ by: kept(forSession, NAME, {}) });
const carried = new Map(); // drafts that were moved, and where to

export const draftOf = (id) => drafts.get().by[id] ?? NOTHING;

export function write(id, patch) {
  drafts.set({ by: { ...drafts.get().by, [id]: { ...draftOf(id), ...patch } } });
  keepThem();
}

/** Keep what is written, for when the page is loaded again. */
function keepThem() {
  const all = Object.entries(drafts.get().by);
  const drafted = (files) =>
    Object.fromEntries(
      all
        .filter(([, { text, files: texts, images, queue }]) => text || texts.length || images.length || queue.length)
        .map(([id, draft]) => [id, { ...NOTHING, text: draft.text, ...(files && filesOf(draft)) }]),
    );
  const whole = drafted(true);
  keep(forSession, NAME, JSON.stringify(whole).length > MOST_CHARS ? drafted(false) : whole);
}

const filesOf = ({ files, images, queue }) => ({ files, images, queue });

/** Let what is written wait for the answer under way. */
export function enqueue(id, { text, files, images }) {
  if (text.trim() || files.length || images.length)
    write(id, { ...NOTHING, queue: [...draftOf(id).queue, { text, files, images }] });
}

// What waits in a duplicated tab is sent by the first.
if (isCopy) for (const id of Object.keys(drafts.get().by)) write(id, { queue: [] });

/** Take a message out of those that wait; the first, if none is named. */
export function dequeue(id, message = draftOf(id).queue[0]) {
  write(id, { queue: draftOf(id).queue.filter((other) => other !== message) });
  return message;
}

export function carry(from, to) {
  const { [from]: draft, ...others } = drafts.get().by;
  if (!draft || from === to) return;
  drafts.set({ by: { ...others, [to]: draft } });
  carried.set(from, to);
  keepThem();
}

const nowAt = (id) => (carried.has(id) ? nowAt(carried.get(id)) : id);

/** Attach files to what is written in a conversation, wherever it is carried, and say of each refused one why. */
export async function attach({ id, model: chosen }, files) {
  const model = models.get().all.find((listed) => listed.id === modelOf(chosen)) ?? null;
  const draft = () => draftOf(nowAt(id));
  const put = (patch) => write(nowAt(id), patch);
  put({ refusals: [] });
  for (const file of files) {
    put({ reading: draft().reading + 1 });
    const nTokens = draft().files.reduce((sum, other) => sum + (other.nTokens ?? 0), 0);
    try {
      const { attachmentOf } = await import("./attach.js");
      const { file: text, image } = await attachmentOf(file, model, nTokens);
      put(text ? { files: [...draft().files, text] } : { images: [...draft().images, image] });
    } catch (error) {
      put({ refusals: [...draft().refusals, error.message] });
    }
    put({ reading: draft().reading - 1 });
  }
}

export function detach(id, removed) {
  const { files, images } = draftOf(id);
  write(id, {
    files: files.filter((file) => file !== removed),
    images: images.filter((image) => image !== removed),
  });
}
