"""Every template's own rendering of tool calls, read back by the format derived from it.

`.venv/bin/python -m tests.chat.formats` writes the outcome to docs/tool-formats.md.
"""

import json
import random
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from cobali_ray.chat.answer_events import ParsedAnswer
from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import KNOWN_FORMATS, Kind
from cobali_ray.chat.splitter import Splitter
from cobali_ray.chat.template import ChatTemplate
from cobali_ray.errors import InvalidParameterError
from tests.chat.comparison import sources
from tools.install import LLAMA

DOCUMENT = Path(__file__).parents[2] / "docs" / "tool-formats.md"
PARAMETERS = MappingProxyType(
    {
        "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "search_web": {
            "query": {"type": "string"},
            "limit": {"type": "number"},
            "safe": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "options": {
                "type": "object",
                "properties": {"deep": {"type": "string"}, "n": {"type": "integer"}},
            },
        },
        "now": {},
    }
)
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}",
            "parameters": {"type": "object", "properties": of, "required": list(of)},
        },
    }
    for name, of in PARAMETERS.items()
)
USER = {"role": "user", "content": "What is the weather in Gdańsk?"}
SCRAPS = ("日本", "<b>", "true", "word", *"\"'\n{}[]ź☃ ,:&7\\")
N_SETS = 12

NO_CALLS = MappingProxyType(
    {
        "HuggingFaceTB-SmolLM3-3B": "",
        "fireworks-ai-llama-3-firefunction-v2": "; it wants variables of its own and renders nothing without",
        "google-gemma-2-2b-it": "",
        "llama-cpp-rwkv-world": "",
        "microsoft-Phi-3.5-mini-instruct": "",
    }
)
"""Templates that say nothing of how calls are written: they get the generic format."""
NOT_RENDERED = frozenset({"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"})
"""Templates that show tools, of models with a known format, but render no calls that could be read back."""
LIMITS = MappingProxyType(
    {
        "LFM2.5-8B-A1B": "escapes nothing in strings, so a backslash is read as Python reads it",
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "writes the end of the turn after the second call",
    }
)
"""What a template writes so that it cannot be read back in general."""


@cache
def template_of(name):
    return ChatTemplate(sources()[name], clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))


@cache
def format_of(name):
    return derive(template_of(name))


def a_value(schema, rng, scraps):
    match schema["type"]:
        case "string":
            return "".join(rng.choices(scraps, k=rng.randint(0, 6)))
        case "integer":
            return rng.randint(-9, 99)
        case "number":
            return rng.choice((1.5, -2, 0))
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [a_value(schema["items"], rng, scraps) for _ in range(rng.randint(0, 2))]
        case "object":
            return {key: a_value(of, rng, scraps) for key, of in schema["properties"].items()}


def a_call_set(name, rng):
    """Return names and arguments of the calls of one turn, such as this template can show."""
    most = 3 if format_of(name).calls.parallel else 1
    most = 2 if name == "deepseek-ai-DeepSeek-R1-Distill-Llama-8B" else most
    scraps = [scrap for scrap in SCRAPS if scrap != "\\" or name != "LFM2.5-8B-A1B"]
    chosen = rng.choices(list(PARAMETERS), k=rng.randint(1, most))
    return [
        (tool, {key: a_value(of, rng, scraps) for key, of in PARAMETERS[tool].items() if rng.random() < 0.8})
        for tool in chosen
    ]


def turn(calls=(), content="", thought=""):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"abcd0000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
    if thought:
        message |= {"reasoning_content": thought, "reasoning": thought}
    return message


def rendered(name, message):
    """Return a prompt and the conversation that goes on with this turn; None where the template refuses."""
    template = template_of(name)
    for tools in (TOOLS, None):
        for content in (message["content"], message["content"] or None):
            try:
                text = template.render(
                    [USER, message | {"content": content}], tools=tools, add_generation_prompt=False
                )
                prompt = template.render([USER], tools=tools)
            except InvalidParameterError:
                continue
            tail = text[n_shared(text, prompt) :]
            if all(call["function"]["name"] in tail for call in message.get("tool_calls", ())):
                return prompt, text
    return None


def answer_text(name, message):
    """Return a prompt and what a model writes behind it, if it writes as its template does.

    A template may render an earlier turn with another beginning than it prompts for, such as without the
    reasoning it opens. Then the prompt is what the two have in common.
    """
    form = format_of(name)
    prompt, text = rendered(name, message)
    n = n_shared(text, prompt)
    rest = text[n:]
    goes_on_thinking = form.opens_reasoning(prompt) and form.reasoning_end in rest
    if n < len(prompt) and not (goes_on_thinking and not rest.startswith(form.reasoning_start)):
        overlap = next((prompt[i:] for i in range(len(prompt)) if rest.startswith(prompt[i:])), "")
        rest = rest.removeprefix(overlap)
        prompt = prompt if overlap else text[:n]
    return prompt, rest.removesuffix(form.call_turn_end).removesuffix(form.turn_end)


def n_shared(one, other):
    """Count what two texts begin with alike, without the half of a tag."""
    n = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    for opening, closing in ("<>", "[]"):
        start = one.rfind(opening, 0, n)
        if start >= 0 and n <= one.find(closing, start) < n + 60:
            n = start
    return n


def split(form, prompt, pieces, tools=TOOLS):
    """Return the events of an answer that comes in these pieces."""
    splitter = Splitter(form, prompt=prompt, tools=tools)
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events + splitter.end()


def read(form, prompt, pieces, tools=TOOLS):
    return ParsedAnswer().add(split(form, prompt, pieces, tools))


def calls_of(answer):
    return [(call.name, json.loads(call.arguments)) for call in answer.calls.values()]


def chunks(text, rng):
    """Cut a text at random places."""
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(1, 30))))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@cache
def round_trips(name, n_sets=N_SETS):
    """Count the call sets that come back as they were rendered, and nothing with them."""
    rng = random.Random(name)
    n_good = 0
    for _ in range(n_sets):
        wanted = a_call_set(name, rng)
        prompt, text = answer_text(name, turn(wanted))
        answer = read(format_of(name), prompt, [text])
        n_good += calls_of(answer) == wanted and not answer.content and not answer.reasoning
    return n_good


def table_row(name):
    form, calls = format_of(name), format_of(name).calls
    own = next(
        (words for words, own in KNOWN_FORMATS.items() if own.recognise(sources()[name]) and own.calls), ""
    )
    opener = " ".join(part for part in (calls.section_start, calls.start) if part) or "none"
    ticks = "````" if "```" in opener else "`"
    opener = f"{ticks}{opener}{ticks}".replace("\n", " ").replace("|", "\\|") if opener != "none" else opener
    reasoning = f"`{form.reasoning_start}` `{form.reasoning_end}`" if form.reasoning_end else ""
    if name in NO_CALLS:
        how, outcome = "generic", "says nothing of calls" + NO_CALLS[name]
    elif name in NOT_RENDERED:
        how, outcome = own, "shows no calls"
    else:
        how, outcome = own or "derived", f"{round_trips(name)} of {N_SETS}"
        outcome += f"; {LIMITS[name]}" if name in LIMITS else ""
    several = "yes" if calls.parallel else "no"
    kind = calls.kind if not calls.quote else f"{calls.kind}-like"
    cells = (name, kind, how, opener, several, reasoning.replace("|", "\\|"), outcome)
    return "| " + " | ".join(cells) + " |\n"


HEAD = f"""# How models write tool calls

Every template of llama.cpp's source package ({LLAMA}) and the format that
`cobali_ray/chat/derivation.py` derives from it.

- *format*: {", ".join(f"`{kind}`" for kind in Kind)}, as `Kind` explains them;
  `-like` with its own quotes and keys.
- *found*: derived from what the template renders, or the name of an entry of `KNOWN_FORMATS`, for formats
  that cannot be derived.
  Templates without calls get the generic format: the tools are described to the model in words.
- *begins with*: what comes before the first call's name, except for the braces of JSON.
- *several*: whether the template shows more than one call in one turn.
- *reasoning*: the markers around it.
- *read back*: of {N_SETS} random sets of calls that the template rendered, how many came back unchanged,
  with quotes, line ends, braces, backslashes and letters of many alphabets in their strings.

`tests/chat/test_formats.py` also reads every template's rendering cut in two at every place. Formats without
escapes have a limit that no parser can avoid: a string that contains the marker that ends it.
This file is written by `.venv/bin/python -m tests.chat.formats`.

Answers can be constrained to calls in each of these formats (`cobali_ray/chat/call_grammar.py`): markers,
names and the order of the parts, and the arguments by the tools' schemas. If no marker opens a call (`none`
and `>>>` below), an answer is constrained once it begins with the name of a tool in the right place. Schema
keys that a syntax cannot enforce are named or, with `strict`, refused: for strings that are not JSON,
`format` and some patterns; for lists and objects that are not JSON, all but items, properties and their
number.

| template | format | found | begins with | several | reasoning | read back |
|---|---|---|---|---|---|---|
"""


def document():
    """Return docs/tool-formats.md."""
    return HEAD + "".join(table_row(name) for name in sources())


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
