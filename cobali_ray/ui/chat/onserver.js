// The switch that keeps conversations on the server. Loaded on demand.
import { html, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { isOnServer, places } from "./place.js";
import { keepOnServer } from "./transfer.js";

const EVERYBODY = "all"; // what the server calls the chats of those who need no key

export function OnServer({ chats }) {
  useStore(places);
  const [moving, setMoving] = useState(null); // while they are moved: whether to the server
  const [wrong, setWrong] = useState(null);
  const on = isOnServer();
  const readers =
    chats === EVERYBODY
      ? "everybody who can reach it can read them, because it needs no key"
      : "every browser with this key shares them";
  const turn = async ({ target }) => {
    if (moving !== null) return;
    setMoving(target.checked);
    setWrong(null);
    try {
      await keepOnServer(target.checked);
    } catch (error) {
      setWrong(`Not all conversations were moved: ${error.message}`);
    }
    setMoving(null);
  };
  return html`<label class="check"><input type="checkbox" checked=${moving ?? on} onChange=${turn} />
      Keep conversations on the server</label>
    <p class="hint">${
      on
        ? `They are stored on the server; ${readers}. Answers go on when the page is closed.`
        : `They are stored in this browser only. Turn this on to move them to the server; there, ${readers}.`
    }</p>
    ${wrong && html`<p class="told wrong" role="alert">${wrong}</p>`}`;
}
