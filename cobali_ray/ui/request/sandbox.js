// A script of a model, run where it reaches neither network nor page, for a limited time.
import { BASE } from "../parts/api.js";
import { count } from "../parts/format.js";

const MOST_MS = 5000;
const MOST_CHARS = 20_000; // of what it prints

/** Run a script and return what it prints and its last value. Throws an Error where it fails or takes too long. */
export async function runScript(code, mostMs = MOST_MS) {
  const frame = document.createElement("iframe");
  Object.assign(frame, { hidden: true, title: "Sandbox", src: new URL("ui/request/sandbox.html", BASE).href });
  frame.sandbox = "allow-scripts";
  let listener;
  try {
    const { content, error } = await new Promise((resolve) => {
      listener = ({ source, data }) => source === frame.contentWindow && resolve(data);
      addEventListener("message", listener);
      frame.onload = () => {
        frame.contentWindow.postMessage(code, "*"); // it has no origin that could be named
        setTimeout(() => resolve({ error: `it took more than ${mostMs / 1000} seconds` }), mostMs);
      };
      document.body.append(frame);
    });
    if (error !== undefined) throw new Error(cut(String(error)));
    return cut(String(content)) || "It printed nothing and has no value.";
  } finally {
    removeEventListener("message", listener);
    frame.remove(); // and with it whatever still runs
  }
}

const cut = (text) =>
  text.length > MOST_CHARS
    ? `${text.slice(0, MOST_CHARS)}\n(${count(text.length - MOST_CHARS)} characters more are left out)`
    : text;
