// Which models the server has, for the chat and the comparison alike. No drawing.
import { call } from "../parts/api.js";
import { makeStore } from "../parts/store.js";

/**
 * `all` as /v1/models lists them, or the `trouble` there was. `chats` is the server's name for the conversations of
 * this key, null where it keeps none, undefined until the server has answered.
 */
export const models = makeStore({ all: [], trouble: null, chats: undefined });

export async function loadModels() {
  try {
    const { data, chats = null } = await (await call("v1/models")).json();
    models.set({ all: data, trouble: null, chats });
  } catch (error) {
    models.set({ trouble: error });
  }
}

/** The engines of a model and how each is, as `{id: status}`; none of a model that is not known. */
export const enginesOf = (name) => models.get().all.find(({ id }) => id === name)?.status.engines ?? {};

/** How many models and adapters there are; each may have several names. */
export const nServed = () =>
  new Set(models.get().all.map(({ id, root, parent }) => (parent === null ? root : id))).size;

/** Return a chosen model's name where the server has it, else the first it has. */
export function modelOf(chosen) {
  const names = models.get().all.map(({ id }) => id);
  return names.includes(chosen) ? chosen : (names[0] ?? chosen);
}
