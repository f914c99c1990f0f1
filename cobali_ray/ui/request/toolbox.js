// Tools that the page offers to a model: some that run here, without any network, those of MCP servers, and the
// user's own.
import { callTool, mcpTools, servers } from "./mcp.js";

const MOST_CHARS = 64_000;
const MOST_TOOLS = 64;
const NAME = /^[\w-]{1,64}$/;

const functionOf = (name, description, properties, required = Object.keys(properties)) => ({
  type: "function",
  function: {
    name,
    description,
    parameters: { type: "object", properties, required, additionalProperties: false },
  },
});

/** What is offered for demonstration: `definition`, `run` on the arguments, and how the page speaks of it. */
export const TOOLS = [
  {
    name: "calculate",
    title: "Calculator",
    note: "",
    definition: functionOf("calculate", "Calculate an arithmetic expression", {
      expression: { type: "string", description: "For example 12 * (3 + 4)" },
    }),
    run: async ({ expression }) => String((await import("./calculate.js")).calculate(expression)),
  },
  {
    name: "get_time",
    title: "Date and time",
    note: "",
    definition: functionOf(
      "get_time",
      "The current date and time",
      { time_zone: { type: "string", description: "For example Europe/Paris; the user's own if left out" } },
      [],
    ),
    run: ({ time_zone: timeZone }) => timeIn(timeZone ? String(timeZone) : undefined),
  },
  {
    name: "get_weather",
    title: "Weather",
    note: "made-up data",
    definition: functionOf("get_weather", "The weather in a city", { city: { type: "string" } }),
    run: ({ city }) => weatherIn(String(city)),
  },
  {
    name: "run_javascript",
    title: "JavaScript",
    note: "runs in this browser, without access to the network or the page",
    definition: functionOf("run_javascript", "Run JavaScript; returns what it prints, and its last value", {
      code: { type: "string", description: "For example [3, 1, 2].toSorted()" },
    }),
    run: async ({ code }) => (await import("./sandbox.js")).runScript(String(code)),
  },
];

function timeIn(timeZone) {
  const write = (options) => new Intl.DateTimeFormat("en-GB", { ...options, timeZone });
  const now = new Date();
  const zone = write({}).resolvedOptions().timeZone;
  return `${write({ timeStyle: "short" }).format(now)} on ${write({ dateStyle: "full" }).format(now)} (${zone})`;
}

const SKIES = ["sunny", "cloudy", "rainy", "windy"];

/** The same made-up weather for a city every time. */
function weatherIn(city) {
  const sum = [...city.toLowerCase()].reduce((hash, letter) => (hash * 31 + letter.codePointAt(0)) % 9973, 7);
  return `${(sum % 30) + 1} degrees and ${SKIES[sum % SKIES.length]} in ${city}`;
}

const toolNamed = (name) => TOOLS.find((tool) => tool.name === name);
const mcp = () => mcpTools(TOOLS.map(({ name }) => name));

/** The tool of an MCP server that a name means: `{name, url, tool}`, or null where this browser knows none. */
export const mcpOf = (name) => mcp().find((tool) => tool.name === name) ?? null;

/** The address of the server that a conversation's model calls by a name; null where that is another kind of tool. */
export const serverOf = (name, settings) =>
  definitionsOf(settings).find((tool) => tool.function.name === name)?.server ?? null;

/** What a user should know of a tool's results; "" for nothing. */
export const noteOf = (name) => toolNamed(name)?.note ?? "";

/**
 * Run a tool on arguments as the model wrote them: `{content}`, `{error}`, or null where a person has to answer.
 * `server` is the address of the one that has the tool; `allowed`: somebody agreed to this call.
 */
export async function runTool(name, args, { server = null, allowed = false, signal = null } = {}) {
  const tool = server === null ? toolNamed(name) : mcpOf(name);
  if (!tool || (server !== null && tool.url !== server)) return null;
  if (server !== null && !allowed && servers.get().value[server].ask) return null;
  try {
    if (server !== null) return await callTool(tool, argumentsOf(args), signal);
    return { content: await tool.run(argumentsOf(args)) };
  } catch (error) {
    return { error: `${name} failed: ${error.message}` };
  }
}

function argumentsOf(args) {
  let values = args;
  if (typeof args === "string") {
    try {
      values = JSON.parse(args || "{}");
    } catch {
      throw new Error("the arguments are not valid JSON");
    }
  }
  if (!isObject(values)) throw new Error("the arguments are not a JSON object");
  return values;
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * The tools of a conversation as a request has them, those of an MCP server with its address as `server`; empty for
 * none. The setting `tools` is `{offered: names of TOOLS, own: JSON as typed, servers: addresses}`. Own tools with a
 * fault are left out, and a server's tool where an own one has its name.
 */
export function definitionsOf({ tools }) {
  const { offered = [], own = "", servers: chosen = [] } = tools ?? {};
  const demonstrated = TOOLS.filter(({ name }) => offered.includes(name)).map(({ definition }) => definition);
  const others = [...demonstrated, ...ownTools(own).tools];
  const names = new Set(others.map((tool) => tool.function.name));
  const far = mcp().filter(({ name, url }) => chosen.includes(url) && !names.has(name));
  return [...others, ...far.map(farDefinition)];
}

const farDefinition = ({ name, url, tool: { description, inputSchema } }) => ({
  type: "function",
  function: { name, ...(description && { description }), parameters: inputSchema ?? { type: "object" } },
  server: url,
});

/** Read what was pasted: `{tools}`, and with a `fault` in words none of them. */
export function ownTools(text) {
  try {
    return { tools: readOwn(text), fault: "" };
  } catch (error) {
    return { tools: [], fault: error.message };
  }
}

function readOwn(text) {
  if (!text.trim()) return [];
  if (text.length > MOST_CHARS)
    throw new Error(`Too long: at most ${MOST_CHARS.toLocaleString("en")} characters.`);
  let values;
  try {
    values = JSON.parse(text);
  } catch (error) {
    throw new Error(`Not valid JSON: ${error.message}`);
  }
  const list = Array.isArray(values) ? values : [values];
  if (list.length > MOST_TOOLS) throw new Error(`Too many: at most ${MOST_TOOLS} tools.`);
  const names = new Set();
  return list.map((value, i) => {
    const tool = readTool(value, list.length > 1 ? `Tool ${i + 1}` : "The tool");
    const { name } = tool.function;
    if (toolNamed(name)) throw new Error(`"${name}" is the name of a demonstration tool.`);
    if (names.has(name)) throw new Error(`There are two tools named "${name}".`);
    names.add(name);
    return tool;
  });
}

/** A definition as the API wants it; the function alone is enough. */
function readTool(value, which) {
  if (!isObject(value)) throw new Error(`${which} is not a JSON object.`);
  const tool = isObject(value.function) ? value.function : value;
  if (typeof tool.name !== "string") throw new Error(`${which} has no "name".`);
  if (!NAME.test(tool.name))
    throw new Error(`"${tool.name.slice(0, 80)}": a name has up to 64 letters, digits, "_" and "-".`);
  if (tool.description !== undefined && typeof tool.description !== "string")
    throw new Error(`"description" of "${tool.name}" is not text.`);
  if (tool.parameters !== undefined && !(isObject(tool.parameters) && tool.parameters.type === "object"))
    throw new Error(`"parameters" of "${tool.name}" must be a JSON schema with "type": "object".`);
  const { name, description, parameters, strict } = tool;
  return {
    type: "function",
    function: {
      name,
      ...(description && { description }),
      ...(parameters && { parameters }),
      ...(strict && { strict }),
    },
  };
}
