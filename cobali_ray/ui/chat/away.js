// An answer whose engine is away: noted in the answer itself, as the feed reports it. No drawing.
import { feed } from "../feed/feed.js";
import { isOpen } from "../request/chat.js";
import { pauseOver } from "../request/resume.js";

/** Whether the shown engine writes an answer: there is no other, or its feed has the request. */
function isOnShownEngine({ requestId, xRequestId }) {
  const { engines, history } = feed.get();
  const isIt = (request) => request.request_id === requestId || request.x_request_id === xRequestId;
  return engines.length < 2 || [...(history?.requests.values() ?? [])].some(isIt);
}

const ON_THE_WAY_MS = 1000; // text that comes sooner was sent before

/** Note in an answer that its engine is away, as the feed reports it, and when it goes on. Returns what ends this. */
export function watchEngine(store) {
  let nBefore = 0; // deltas when it went away
  const look = () => {
    const { status, cause } = feed.get();
    const answer = store.get();
    const away = status === "gone" && cause === "restarting";
    if (answer.pause?.why === "engine") {
      const late = Date.now() - answer.pause.sinceMs > ON_THE_WAY_MS;
      if (answer.nDeltas > nBefore && (late || !away)) store.set(pauseOver(answer));
      else if (!late) nBefore = answer.nDeltas;
    } else if (away && !answer.pause && isOpen(answer) && isOnShownEngine(answer)) {
      nBefore = answer.nDeltas;
      store.set({ pause: { why: "engine", sinceMs: Date.now() } });
    }
  };
  look();
  const ends = [feed.watch(look), store.watch(look)];
  return () => ends.forEach((end) => end());
}
