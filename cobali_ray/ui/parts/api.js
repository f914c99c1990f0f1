// HTTP to the server this page came from: base address, key, errors.
import { forSession, keep, kept, makeStore } from "./store.js";

/** The folder above /ui/, wherever the server is mounted. */
export const BASE = new URL("../../", import.meta.url);

/** Whether the server needs a key, which one this session has, and how often one was entered. */
export const access = makeStore({ key: kept(forSession, "key", ""), keyNeeded: false, wrong: false, entered: 0 });

/** An answer that is no success. `status` 0: there was no answer. */
class ApiError extends Error {
  constructor(status, { message, type = null, code = null } = {}, retryAfterS = null) {
    super(message || `HTTP ${status}`);
    Object.assign(this, { status, type, code, retryAfterS });
  }
}

/** Use a key from now on, for as long as this tab lives. */
export function useKey(key) {
  keep(forSession, "key", key || null);
  access.set({ key, keyNeeded: false, wrong: false, entered: access.get().entered + 1 });
}

/**
 * Call the server; `id` names the request, and `stream` the stream of its answer. Throws ApiError, also
 * where nobody answers; an abort stays an AbortError.
 */
export async function call(path, { body = null, method = body ? "POST" : "GET", id, stream, signal } = {}) {
  const { key } = access.get();
  const headers = {
    ...(body && { "content-type": "application/json" }),
    ...(id && { "x-request-id": id }),
    ...(stream && { "x-cobali-stream": stream }),
  };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method,
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The server does not answer." });
  }
  if (response.ok) return response;
  throw await refusal(response, key);
}

async function refusal(response, key) {
  if (response.status === 401 && access.get().key === key) access.set({ keyNeeded: true, wrong: Boolean(key) });
  const retryAfterS = Number(response.headers.get("retry-after")) || null;
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch {
    // Not this server's: a proxy's page. The status has to do.
  }
  return new ApiError(response.status, details, retryAfterS);
}
