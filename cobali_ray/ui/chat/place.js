// Where conversations are kept: in this browser, or on the server under the key of this session. No drawing.
import { keptStore, until } from "../parts/store.js";
import { models } from "../request/models.js";
import * as browser from "./shelf.js";

const NAME = "on-server";

/** The server's names, one per key, of the shelves on which this browser keeps its conversations. */
export const places = keptStore(NAME, []);

addEventListener("storage", ({ key }) => {
  if (key === `cobali.${NAME}`) places.readAgain(); // another tab chose
});

/** Whether conversations are kept on the server, as far as is known. */
export const isOnServer = () => places.get().value.includes(models.get().chats);

/** Keep them there from now on, or no longer. */
export function choose(onServer) {
  const { chats } = models.get();
  const others = places.get().value.filter((name) => name !== chats);
  places.put(onServer ? [...others, chats] : others);
}

/** Return the module that reads and writes them, once it is known which that is. */
export async function shelf() {
  if (places.get().value.length) await until(models, ({ chats }) => chats !== undefined);
  return isOnServer() ? import("./served.js") : browser;
}
