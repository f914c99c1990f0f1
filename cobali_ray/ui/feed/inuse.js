// Which engine the page shows beside answers: one of their model, and of several the one that answers.
import { call } from "../parts/api.js";
import { useEffect } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { enginesOf, modelOf, models } from "../request/models.js";
import { feed, hasTicks, show, shown } from "./feed.js";

const LOOKS_S = [0.3, 0.5, 1, 2, 4]; // pauses before looking for a request; then it counts as not to be found

/**
 * Has an engine of a model shown; draws nothing. `request`: the `x-request-id` of what it is asked, or null.
 *
 * The choice in the header holds until `said` changes, or the model.
 */
export function EngineInUse({ model, request, said }) {
  useStore(models);
  const { engines } = useStore(feed);
  const states = enginesOf(modelOf(model));
  const own = Object.keys(states);
  const several = engines.length > 1;
  useEffect(() => {
    if (several && own.length && !own.includes(shown()))
      show(own.find((id) => states[id] === "ready") ?? own[0]);
  }, [several, own.join(), said]);
  useEffect(() => {
    if (!request || own.length < 2) return undefined;
    const leave = new AbortController();
    const asked = own.filter((id) => hasTicks({ status: states[id] }));
    showWhoHas(request, asked, leave.signal);
    return () => leave.abort();
  }, [request, own.join()]);
  return null;
}

/** Show the engine that has a request, if one of `engines` says so. */
async function showWhoHas(xRequestId, engines, signal) {
  const isIt = (request) => request.x_request_id === xRequestId;
  for (const seconds of LOOKS_S) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    if (signal.aborted || [...(feed.get().history?.requests.values() ?? [])].some(isIt)) return;
    for (const engine of engines) {
      const requests = await openOn(engine, signal);
      if (signal.aborted) return;
      if (!requests.some(isIt)) continue;
      if (engine !== shown()) show(engine);
      return;
    }
  }
}

/** The requests that an engine has; none of one that does not tell. */
async function openOn(engine, signal) {
  try {
    const asked = new URLSearchParams({ engine, last: 1 });
    return (await (await call(`debug/ticks?${asked}`, { signal })).json()).requests;
  } catch {
    return [];
  }
}
