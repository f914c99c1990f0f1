// Where conversations are kept: in this browser, or on the server under the key of this session. No drawing.
import { forGood, keep, kept, makeStore } from "../parts/store.js";
import { models } from "../request/models.js";
import * as browser from "./shelf.js";

const NAME = "on-server";

/** The server's names, one per key, of the shelves on which this browser keeps its conversations. */
export const places = makeStore({ chosen: kept(forGood, NAME, []) });

addEventListener("storage", ({ key }) => {
  if (key === `cobali.${NAME}`) places.set({ chosen: kept(forGood, NAME, []) }); // another tab chose
});

/** Whether conversations are kept on the server, as far as is known. */
export const isOnServer = () => places.get().chosen.includes(models.get().chats);

/** Keep them there from now on, or no longer. */
export function choose(onServer) {
  const { chats } = models.get();
  const others = places.get().chosen.filter((name) => name !== chats);
  const chosen = onServer ? [...others, chats] : others;
  places.set({ chosen });
  keep(forGood, NAME, chosen);
}

/** Return the module that reads and writes them, once it is known which that is. */
export async function shelf() {
  if (places.get().chosen.length) await shelvesKnown();
  return isOnServer() ? import("./served.js") : browser;
}

function shelvesKnown() {
  return new Promise((resolve) => {
    const look = () => {
      if (models.get().chats === undefined) return;
      unwatch();
      resolve();
    };
    const unwatch = models.watch(look);
    look();
  });
}
