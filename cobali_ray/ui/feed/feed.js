// The feed of ticks: one connection per page, kept up through restarts, closed while the page is hidden.
import { access, call } from "../parts/api.js";
import { eventsOf } from "../parts/sse.js";
import { makeStore, until } from "../parts/store.js";
import { History } from "./history.js";

const AT_START = 600;
export const REMEMBERED = 4096; // ticks that the engine has, at most
const RETRY_S = [0.5, 1, 2, 4];
const SILENT_S = 20;
// Such an engine has no ticks, so they are not requested; the stream reports its status, and waits for them.
const WITHOUT_TICKS = ["unloaded", "loading", "failed", "restarting"];
export const hasTicks = (state) => !WITHOUT_TICKS.includes(state?.status);

/** `status`: connecting, live, gone (no engine), lost (no server), locked (no key), absent, asleep. */
export const feed = makeStore({
  status: "connecting",
  detail: "",
  cause: null, // of gone: the engine's status, such as restarting or loading
  sinceUnixS: null,
  history: null,
  restarted: null,
  version: 0,
  engines: [], // ids of all there are
  engine: null, // the id of the one that was chosen; null: the first is shown
});

const clock = () => performance.now() / 1000;
export const engineNow = (history) => history.now(clock());

let connection = new AbortController();

/** The id of the engine that is shown. */
export const shownEngine = () => feed.get().engine ?? feed.get().engines[0];

export function show(engine) {
  feed.set({ status: "connecting", engine, history: null, restarted: null });
  connection.abort();
}

/** A path with the shown engine in its query, once one was chosen. */
function enginePath(path, query = {}) {
  const { engine } = feed.get();
  const params = new URLSearchParams({ ...query, ...(engine !== null && { engine }) });
  return params.size ? `${path}?${params}` : path;
}

/** Connect, and stay connected as long as the page is looked at. */
export async function follow() {
  let failures = 0;
  for (;;) {
    if (document.hidden) {
      feed.set({ status: "asleep" });
      while (document.hidden)
        await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
      feed.set({ status: "connecting" });
    }
    const { version: versionBefore, engine } = feed.get();
    try {
      await listen();
      lose("The connection to the server was closed.");
    } catch (error) {
      if (feed.get().engine !== engine) continue;
      if (error.status === 401) {
        await unlocked();
        continue;
      }
      if (error.status === 404) feed.set({ status: "absent", detail: error.message });
      else if (error.name === "AbortError") lose(`The server sent nothing for ${SILENT_S} s.`);
      else if (error.status > 0) feed.set({ status: "gone", detail: error.message, cause: null });
      else lose(error.message);
    }
    failures = feed.get().version > versionBefore ? 0 : failures + 1;
    await pause(RETRY_S[Math.min(failures, RETRY_S.length - 1)]);
  }
}

/** Fetch what the engine still has of older ticks. */
export async function fetchOlder() {
  const response = await call(enginePath("debug/ticks", { last: REMEMBERED }));
  merge(await response.json());
}

async function listen() {
  const abort = new AbortController();
  connection = abort;
  const sleep = () => document.hidden && abort.abort();
  document.addEventListener("visibilitychange", sleep);
  const watch = () => setTimeout(() => abort.abort(), SILENT_S * 1000);
  let silence = watch();
  try {
    const health = await call("health", { signal: abort.signal });
    const { engines } = await health.json();
    feed.set({ engines: engines.map((engine) => engine.engine_id) });
    if (hasTicks(engines.find((engine) => engine.engine_id === shownEngine()))) {
      const { history } = feed.get();
      const query = history ? { last: REMEMBERED, since: history.next } : { last: AT_START };
      const first = await call(enginePath("debug/ticks", query), { signal: abort.signal });
      merge(await first.json());
    }
    const response = await call(enginePath("debug/stream"), { signal: abort.signal });
    for await (const { event, data } of eventsOf(response)) {
      clearTimeout(silence);
      silence = watch();
      if (event === "message") merge(JSON.parse(data));
      if (event !== "gone") continue;
      const { status: cause, detail, down_s: downS } = JSON.parse(data);
      feed.set({ status: "gone", detail: `${detail}.`, cause, sinceUnixS: Date.now() / 1000 - downS });
      clearTimeout(silence); // nothing is sent until that changes
    }
  } finally {
    clearTimeout(silence);
    document.removeEventListener("visibilitychange", sleep);
    abort.abort();
  }
}

/** Take a packet; a new engine.incarnation_id means that the engine was restarted. */
export function merge(packet) {
  const { history, version, engine } = feed.get();
  if (engine !== null && packet.engine.engine_id !== engine) return;
  const same = history?.engine.incarnation_id === packet.engine.incarnation_id;
  const restarted = history && !same ? { atUnixS: packet.unix_s } : feed.get().restarted;
  const next = same ? history : new History(packet);
  next.add(packet, clock());
  feed.set({ status: "live", detail: "", history: next, restarted, version: version + 1 });
}

function lose(detail) {
  if (!document.hidden) feed.set({ status: "lost", detail });
}

async function unlocked() {
  feed.set({ status: "locked", detail: "" });
  await until(access, ({ keyNeeded }) => !keyNeeded);
  feed.set({ status: "connecting" });
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
