// Which engine the page shows beside answers: one of their model, and of several the one that answers.
import { call } from "../parts/api.js";
import { useEffect } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { enginesOf, modelOf, models } from "../request/models.js";
import { feed, hasTicks, show, shownEngine } from "./feed.js";

const LOOKS_S = [0.3, 0.5, 1, 2, 4]; // pauses before each search for a request; after the last it is given up

/**
 * Shows an engine of a model; draws nothing. `request`: the `x-request-id` of the request under way, or null.
 *
 * The choice in the header holds until `revision` (of the conversation or comparison) or the model changes.
 */
export function EngineInUse({ model, request, revision }) {
  useStore(models);
  const { engines } = useStore(feed);
  const states = enginesOf(modelOf(model));
  const own = Object.keys(states);
  const several = engines.length > 1;
  useEffect(() => {
    if (several && own.length && !own.includes(shownEngine()))
      show(own.find((id) => states[id] === "ready") ?? own[0]);
  }, [several, own.join(), revision]);
  useEffect(() => {
    if (!request || own.length < 2) return undefined;
    const leave = new AbortController();
    const withTicks = own.filter((id) => hasTicks({ status: states[id] }));
    showEngineWith(request, withTicks, leave.signal);
    return () => leave.abort();
  }, [request, own.join()]);
  return null;
}

/** Show the engine that has a request, if one of `engines` says so. */
async function showEngineWith(xRequestId, engines, signal) {
  const isSame = (request) => request.x_request_id === xRequestId;
  for (const seconds of LOOKS_S) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    if (signal.aborted || [...(feed.get().history?.requests.values() ?? [])].some(isSame)) return;
    for (const engine of engines) {
      const requests = await openOn(engine, signal);
      if (signal.aborted) return;
      if (!requests.some(isSame)) continue;
      if (engine !== shownEngine()) show(engine);
      return;
    }
  }
}

/** The requests that an engine has; none if it does not answer. */
async function openOn(engine, signal) {
  try {
    const params = new URLSearchParams({ engine, last: 1 });
    return (await (await call(`debug/ticks?${params}`, { signal })).json()).requests;
  } catch {
    return [];
  }
}
