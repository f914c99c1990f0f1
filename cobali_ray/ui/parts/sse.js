// Server-sent events out of a fetch body. EventSource cannot send an Authorization header.

/** Yield `{event, data, id}` for each event of a response's body; `id` is null where it has none. */
export async function* eventsOf(response) {
  const parse = makeParser();
  for await (const text of piecesOf(response.body.pipeThrough(new TextDecoderStream()))) yield* parse(text);
}

/** Yield the pieces of a stream, which not every browser iterates by itself. */
export async function* piecesOf(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Return a function from text, cut anywhere, to the events that it completes. */
export function makeParser() {
  let rest = "";
  let event = "message";
  let data = [];
  let id = null;
  const take = (line) => {
    if (line === "") {
      const done = data.length ? { event, data: data.join("\n"), id } : null;
      event = "message";
      id = null;
      data = [];
      return done;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment keeps the connection warm
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event = value;
    if (field === "data") data.push(value);
    if (field === "id") id = value;
    return null;
  };
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n/);
    rest = lines.pop();
    return lines.map(take).filter(Boolean);
  };
}
