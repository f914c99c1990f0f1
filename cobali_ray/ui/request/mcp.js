// MCP servers: which of them this browser knows, the tools of each, and calls. No drawing; a worker sends requests.
import { BASE } from "../parts/api.js";
import { forSession, keep, kept, keptStore } from "../parts/store.js";

const NAME = "mcp";
const MOST_NAME = 64;

/** By address: `{title, tools: [{name, description, inputSchema}], ask}`; `ask`: before every call. */
export const servers = keptStore(NAME, {});

/** Keys of servers, which this tab forgets when it is closed. */
const keys = () => kept(forSession, NAME, {});

let worker = null;
let last = 0;
const waiting = new Map();

/** Have the worker do something; `signal` stops it. */
function done(work, url, params = {}, signal = null) {
  if (!worker) {
    worker = new Worker(new URL("ui/request/mcpworker.js", BASE), { type: "module" });
    worker.onmessage = ({ data: { n, result, error } }) => {
      if (!waiting.has(n)) return;
      const { resolve, reject } = waiting.get(n);
      waiting.delete(n);
      if (error === undefined) resolve(result);
      else reject(new Error(error));
    };
    worker.onerror = () => {
      for (const { reject } of waiting.values()) reject(new Error("A part of this page could not be loaded."));
      waiting.clear();
      worker.terminate();
      worker = null;
    };
  }
  last += 1;
  const n = last;
  signal?.addEventListener("abort", () => worker?.postMessage({ n, stop: true }));
  worker.postMessage({ n, work, server: { url, key: keys()[url] ?? "" }, ...params });
  return new Promise((resolve, reject) => void waiting.set(n, { resolve, reject }));
}

/** Ask a server for its tools and remember them; `key` null keeps the one there is. Throws an Error that says why. */
export async function connect(address, key = null) {
  const url = addressOf(address);
  if (key !== null) keep(forSession, NAME, { ...keys(), [url]: key });
  const { title, tools } = await done("list", url);
  const named = tools.map(({ name, description = "", inputSchema }) => ({ name, description, inputSchema }));
  const { value: all } = servers.get();
  servers.put({ ...all, [url]: { ask: true, ...all[url], title: title || new URL(url).host, tools: named } });
  return url;
}

function addressOf(text) {
  const trimmed = text.trim();
  if (!/^https?:\/\//i.test(trimmed) || !URL.canParse(trimmed))
    throw new Error("The address must begin with https: or http:, as in the example.");
  return new URL(trimmed).href;
}

export function changeServer(url, patch) {
  const { value: all } = servers.get();
  servers.put({ ...all, [url]: { ...all[url], ...patch } });
}

export function forget(url) {
  const { [url]: server, ...all } = servers.get().value;
  const { [url]: key, ...others } = keys();
  servers.put(all);
  keep(forSession, NAME, others);
}

/**
 * The tools of all servers under names that a request may have: `[{name, url, tool}]`. Of two with one name, the
 * later one gets a number; `taken` are the names that others have.
 */
export function mcpTools(taken) {
  const names = new Set(taken);
  return Object.entries(servers.get().value).flatMap(([url, { tools }]) =>
    tools.map((tool) => {
      const plain = tool.name.replaceAll(/[^\w-]/g, "_").slice(0, MOST_NAME) || "tool";
      let name = plain;
      for (let i = 2; names.has(name); i += 1) name = `${plain.slice(0, MOST_NAME - 4)}_${i}`;
      names.add(name);
      return { name, url, tool };
    }),
  );
}

/** Call a tool of a server: `{content}`, or `{error}` where it failed. */
export async function callTool({ url, tool }, args, signal = null) {
  return resultOf(await done("call", url, { name: tool.name, args }, signal));
}

function resultOf({ content = [], structuredContent, isError = false }) {
  const parts = content.map(partOf).filter(Boolean);
  const text = parts.join("\n\n") || (structuredContent ? JSON.stringify(structuredContent) : "");
  return isError ? { error: text || "The tool failed without saying why." } : { content: text };
}

function partOf({ type, text, resource, uri, mimeType }) {
  if (type === "text") return text;
  if (type === "resource_link") return uri;
  return resource?.text ?? `(${mimeType ?? type}, which is not shown)`;
}
