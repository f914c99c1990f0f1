// Where conversations are kept: this browser's IndexedDB, a record each, united with what other tabs wrote.
import { summaryOf, united } from "../request/conversations.js";

/** Bounds: of conversations, and of one, as JSON. */
const MOST_CONVERSATIONS = 1000;
const MOST_CHARS = 16 * 1024 * 1024;
const NAME = "cobali";
const STORE = "conversations";

const others = new BroadcastChannel("cobali.conversations");

/** Call with the id of each conversation that another tab wrote or deleted, until what this returns is called. */
export function onOthers(call) {
  const listener = ({ data }) => call(data);
  others.addEventListener("message", listener);
  return () => others.removeEventListener("message", listener);
}

let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  }).catch((error) => {
    opened = null;
    throw storageError(error);
  });
  return opened;
}

/** Do something in one transaction; its result is that of the request that `work` returns, once all is on disk. */
async function within(mode, work) {
  const db = await open();
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(STORE, mode);
    let request = null;
    let refusal = null;
    const refuse = (error) => {
      refusal = error;
      transaction.abort();
    };
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(refusal ?? storageError(transaction.error));
    request = work(transaction.objectStore(STORE), refuse);
  });
}

function storageError(error) {
  if (error?.name === "QuotaExceededError")
    return new Error("This browser has no more room for conversations. Export or delete some.");
  return new Error(
    `This browser does not let the page store anything (${error?.message || error?.name || "no reason given"}).`,
  );
}

export const readAll = () => within("readonly", (store) => store.getAll());

/** Return the summaries of all of them. */
export const summaries = async () => (await readAll()).map(summaryOf);

/** Return one conversation, or undefined. */
export const read = (id) => within("readonly", (store) => store.get(id));

/** Write a conversation, united with what is there; resolves to that. Throws an Error that says what to do. */
export async function write(mine) {
  let whole = mine;
  await within("readwrite", (store, refuse) => {
    const before = store.get(mine.id);
    before.onsuccess = () => {
      whole = united(before.result, mine);
      if (JSON.stringify(whole).length > MOST_CHARS) {
        refuse(new Error("This conversation is too long to be stored. Export it, and begin a new one."));
        return;
      }
      const count = store.count();
      count.onsuccess = () => {
        if (!before.result && count.result >= MOST_CONVERSATIONS)
          refuse(
            new Error(`${MOST_CONVERSATIONS} conversations are stored already. Delete some to store this one.`),
          );
        else store.put(whole);
      };
    };
    return before;
  });
  others.postMessage(mine.id);
  return whole;
}

export async function remove(id) {
  await within("readwrite", (store) => store.delete(id));
  others.postMessage(id);
}
