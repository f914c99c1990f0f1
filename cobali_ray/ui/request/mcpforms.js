// The forms of MCP servers: which of them a conversation uses, and whether a call may be made.
import { Icon } from "../parts/icons.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { some } from "../parts/format.js";
import { useStore } from "../parts/store.js";
import { changeServer, connect, forget, servers } from "./mcp.js";
import { mcpOf, runTool } from "./toolbox.js";

/** The servers of this browser; `chosen` are the addresses that the conversation uses, `choose` takes others. */
export function Servers({ chosen, choose }) {
  const { value: all } = useStore(servers);
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState("");
  const [address, key] = [useRef(null), useRef(null)];
  const turn = (url, on) => choose([...chosen.filter((other) => other !== url), ...(on ? [url] : [])]);
  const reach = async (text, withKey) => {
    setFault("");
    setBusy(text);
    try {
      return await connect(text, withKey);
    } catch (error) {
      setFault(error.message);
      return null;
    } finally {
      setBusy("");
    }
  };
  const add = async (event) => {
    event.preventDefault();
    const url = await reach(address.current.value, key.current.value.trim());
    if (url === null) return;
    turn(url, true);
    address.current.value = "";
    key.current.value = "";
  };
  const remove = (url) => {
    turn(url, false);
    forget(url);
  };
  return html`<div class="servers" role="group" aria-label="MCP servers">
    ${Object.entries(all).map(
      ([url, server]) => html`<${Server} key=${url} url=${url} server=${server} on=${chosen.includes(url)}
        busy=${busy === url} turn=${turn} reach=${reach} remove=${remove} />`,
    )}
    <form onSubmit=${add}>
      <label class="field"><span>Add an MCP server</span>
        <input ref=${address} type="url" name="mcp-address" placeholder="https://tools.example/mcp" required
          aria-invalid=${fault ? "true" : null} aria-describedby="mcp-hint" /></label>
      <label><span class="hidden">Key of the MCP server</span>
        <input ref=${key} type="password" autocomplete="off" placeholder="key, if it needs one" /></label>
      <button disabled=${busy !== ""}>${busy ? "Asking …" : "Add"}</button>
    </form>
    <p id="mcp-hint" class=${`hint ${fault ? "wrong" : ""}`} role=${fault ? "alert" : null}>${
      fault ||
      "Its tools run there and receive what the model sends. The server has to accept requests from this page (CORS)."
    }</p>
  </div>`;
}

function Server({ url, server, on, busy, turn, reach, remove }) {
  const { title, tools, ask } = server;
  const { host } = new URL(url);
  return html`<div class="server">
    <label class="check"><input type="checkbox" role="switch" checked=${on}
        onChange=${(event) => turn(url, event.target.checked)} />
      <span>${title} <small>${host}, ${some(tools.length, "tool")}</small></span></label>
    <details><summary aria-label=${`Details of ${title}`}>Details</summary>
      <ul>${tools.map(
        ({ name, description }) => html`<li key=${name}><code>${name}</code> <small>${description}</small></li>`,
      )}</ul>
      <label class="check"><input type="checkbox" checked=${ask}
        onChange=${(event) => changeServer(url, { ask: event.target.checked })} /> Ask before each call</label>
      <button type="button" class="quiet small" disabled=${busy} onClick=${() => reach(url, null)}>
        <${Icon} name="retry" size=${14} />Ask for its tools again</button>
      <button type="button" class="quiet small" onClick=${() => remove(url)}>
        <${Icon} name="trash" size=${14} />Remove</button>
    </details>
  </div>`;
}

/** Asks whether a call goes to its server; `onResult` takes what came of it, `{content}` or `{error}`. */
export function Question({ call: { name, args, server }, onResult }) {
  const { value: all } = useStore(servers);
  const [runs, setRuns] = useState(false);
  const leave = useRef(null);
  useEffect(() => () => leave.current?.abort(), []);
  const { host } = new URL(server);
  if (mcpOf(name)?.url !== server) {
    return html`<form onSubmit=${(event) => event.preventDefault()}>
      <p class="muted">This browser does not know the server ${host}, or the server no longer has this tool.</p>
      <div><button type="button" onClick=${() => onResult({ error: "The tool is not available." })}>
        Continue without it</button></div></form>`;
  }
  const run = async (event) => {
    event.preventDefault();
    setRuns(true);
    leave.current = new AbortController();
    const result = await runTool(name, args, { server, allowed: true, signal: leave.current.signal });
    if (!leave.current.signal.aborted) onResult(result);
    setRuns(false);
  };
  if (runs)
    return html`<form><div role="status"><span class="muted">Waiting for ${host} …</span>
      <button type="button" onClick=${() => leave.current.abort()}>Stop</button></div></form>`;
  return html`<form onSubmit=${run} aria-label=${`Call of ${name}`}>
    <p>Send this to <b>${all[server].title}</b> (${host})?</p>
    <div><button class="primary">Call it</button>
      <button type="button" onClick=${() => onResult({ error: "The user did not allow this call." })}>
        Do not call</button></div>
  </form>`;
}
