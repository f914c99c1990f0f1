// A client of MCP servers over streamable HTTP, in a worker: nothing else of the page may reach another host.
// The protocol is at modelcontextprotocol.io/specification.
import { eventsOf } from "../parts/sse.js";

const SPEAKS = "2025-06-18";
const PATIENCE_MS = 60_000; // for one answer
const MOST_PAGES = 32; // of a list of tools
const CANNOT = { code: -32601, message: "This client answers only ping requests." };

const sessions = new Map(); // by address: {id, version, title}
const underWay = new Map(); // by the page's number: the AbortController
let lastId = 0;

/** The page sends `{n, stop}`, or `{n, work, server: {url, key}, …}`, and gets `{n, result}` or `{n, error}`. */
onmessage = async ({ data: { n, stop = false, work, server, ...params } }) => {
  if (stop) return void underWay.get(n)?.abort();
  const abort = new AbortController();
  underWay.set(n, abort);
  const signal = AbortSignal.any([abort.signal, AbortSignal.timeout(PATIENCE_MS)]);
  try {
    postMessage({ n, result: await WORKS[work](server, params, signal) });
  } catch (error) {
    const late = error.name === "TimeoutError" && `${new URL(server.url).host} did not answer within a minute.`;
    postMessage({ n, error: late || error.message });
  }
  underWay.delete(n);
};

const WORKS = {
  /** Open a session anew and return what the server calls itself, and its tools. */
  async list(server, _, signal) {
    sessions.delete(server.url);
    const tools = [];
    let cursor;
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const params = cursor === undefined ? {} : { cursor };
      const { tools: more = [], nextCursor } = await inSession(server, "tools/list", params, signal);
      tools.push(...more);
      if (nextCursor === undefined || nextCursor === null) break;
      cursor = nextCursor;
    }
    return { title: sessions.get(server.url).title, tools };
  },
  call: (server, { name, args }, signal) => inSession(server, "tools/call", { name, arguments: args }, signal),
};

/** Ask within a session; in a new one where the server has forgotten it. */
async function inSession(server, method, params, signal) {
  const hadSession = sessions.has(server.url);
  if (!hadSession) await open(server, signal);
  try {
    return (await request(server, method, params, signal)).result;
  } catch (error) {
    if (error.status !== 404 || !hadSession) throw error;
    sessions.delete(server.url);
    await open(server, signal);
    return (await request(server, method, params, signal)).result;
  }
}

async function open(server, signal) {
  const clientInfo = { name: "cobali_ray", version: "1" };
  const params = { protocolVersion: SPEAKS, capabilities: {}, clientInfo };
  const { result, id } = await request(server, "initialize", params, signal);
  const { title, name } = result.serverInfo ?? {};
  sessions.set(server.url, { id, version: result.protocolVersion, title: title ?? name ?? "" });
  await post(server, { method: "notifications/initialized" }, signal);
}

/** Send a request; returns its result and the id of the session that it began. */
async function request(server, method, params, signal) {
  lastId += 1;
  const id = lastId;
  try {
    const response = await post(server, { id, method, params }, signal);
    for await (const message of messagesOf(response)) {
      if (message.method !== undefined) {
        if (message.id !== undefined) await reply(server, message, signal);
      } else if (message.id === id) {
        if (message.error) throw new Error(message.error.message ?? "The server refused without saying why.");
        return { result: message.result, id: response.headers.get("mcp-session-id") };
      }
    }
  } catch (error) {
    const left = signal.aborted && method !== "initialize";
    if (left) post(server, { method: "notifications/cancelled", params: { requestId: id } }).catch(() => {});
    throw error;
  }
  throw new Error("The server's answer ended before the result.");
}

/** Answer what a server asks while it works. */
const reply = (server, { id, method }, signal) =>
  post(server, method === "ping" ? { id, result: {} } : { id, error: CANNOT }, signal);

async function post({ url, key }, message, signal) {
  const session = sessions.get(url);
  const { host } = new URL(url);
  let response;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        accept: "application/json, text/event-stream",
        ...(key && { authorization: `Bearer ${key}` }),
        ...(session && { "mcp-protocol-version": session.version }),
        ...(session?.id && { "mcp-session-id": session.id }),
      },
      body: JSON.stringify({ jsonrpc: "2.0", ...message }),
      signal,
      credentials: "omit",
      referrerPolicy: "no-referrer",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name !== "TypeError") throw error;
    throw new Error(`${host} does not answer, or does not allow requests from pages of ${location.origin} (CORS).`);
  }
  if (response.ok) return response;
  const why = response.status === 401 ? "it needs a key, or a different one" : `status ${response.status}`;
  throw Object.assign(new Error(`${host} refused: ${why}.`), { status: response.status });
}

/** The messages of an answer: JSON, or events of it. */
async function* messagesOf(response) {
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("application/json")) {
    yield* [await response.json()].flat();
  } else if (type.startsWith("text/event-stream")) {
    for await (const { data } of eventsOf(response)) if (data) yield JSON.parse(data);
  } else throw new Error(`This address is not an MCP server: it sent ${type || "nothing"}.`);
}
