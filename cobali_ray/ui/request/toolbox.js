// Tools that the page offers to a model: some that run here, without any network, and the user's own.

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

const found = (name) => TOOLS.find((tool) => tool.name === name);

/** What a user should know of a tool's results; "" for nothing. */
export const noteOf = (name) => found(name)?.note ?? "";

/** Run a tool on arguments as the model wrote them: `{content}`, `{error}`, or null where a person has to answer. */
export async function runTool(name, args) {
  const tool = found(name);
  if (!tool) return null;
  try {
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
  if (!isObject(values)) throw new Error("the arguments are no JSON object");
  return values;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The setting `tools` is `{offered: names of TOOLS, own: JSON as typed}`. */
const chosenOf = ({ tools }) => ({ offered: tools?.offered ?? [], own: tools?.own ?? "" });

/** The `tools` of a request; empty for none. Own tools with a fault are left out. */
export function definitionsOf(settings) {
  const { offered, own } = chosenOf(settings);
  const demonstrated = TOOLS.filter(({ name }) => offered.includes(name)).map(({ definition }) => definition);
  return [...demonstrated, ...ownTools(own).tools];
}

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
    if (found(name)) throw new Error(`"${name}" is the name of a demonstration tool.`);
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
