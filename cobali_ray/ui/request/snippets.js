// A request as text to paste: curl, and Python with the openai package. No DOM.

/** What the openai package knows by name; the rest goes into its extra_body. */
const KNOWN = new Set(
  (
    "model messages temperature top_p max_tokens seed stop stream stream_options frequency_penalty " +
    "presence_penalty n tools"
  ).split(" "),
);

/** The request as a shell command. The key is named, never shown. */
export function asCurl(base, body, keyed) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = keyed ? ` \\\n  -H "Authorization: Bearer $COBALI_KEY"` : "";
  const url = new URL("v1/chat/completions", base);
  return `curl -N ${url} \\\n  -H 'content-type: application/json'${key} \\\n  -d '${json}'\n`;
}

/** The same as a Python program. */
export function asPython(base, body, keyed) {
  const own = Object.entries(body).filter(([name]) => !KNOWN.has(name));
  const args = Object.entries(body)
    .filter(([name]) => KNOWN.has(name) && !["stream", "stream_options"].includes(name))
    .map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  if (own.length) args.push(`    extra_body=${literal(Object.fromEntries(own), 4)},`);
  const key = keyed ? 'os.environ["COBALI_KEY"]' : '"unused"';
  return `${keyed ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(String(new URL("v1", base)))}, api_key=${key})
stream = client.chat.completions.create(
${args.join("\n")}
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}

/** Write a JSON value as a Python literal. */
export function literal(value, indent = 0) {
  const pad = " ".repeat(indent + 4);
  const end = `\n${" ".repeat(indent)}`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value))
    return value.length
      ? `[\n${value.map((v) => `${pad}${literal(v, indent + 4)},`).join("\n")}${end}]`
      : "[]";
  if (typeof value === "object") {
    const pairs = Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${literal(v, indent + 4)}`);
    return pairs.length > 2
      ? `{\n${pairs.map((pair) => `${pad}${pair},`).join("\n")}${end}}`
      : `{${pairs.join(", ")}}`;
  }
  return JSON.stringify(value);
}
