"""Our rendering of chat templates beside that of transformers, template by template.

`.venv/bin/python -m tests.chat.comparison` writes the outcome to docs/templates.md.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from cobali_ray.chat.template import ChatTemplate
from cobali_ray.errors import InvalidParameterError
from tools.install import LLAMA, TEMPLATES

DOCUMENT = Path(__file__).parents[2] / "docs" / "templates.md"
BOS, EOS = "<bos>", "<eos>"
TOOL = "get_weather"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f'{what} of a city <now> & "here" in °C',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "days": {"type": "integer", "description": "How many"},
                },
                "required": ["city"],
            },
        },
    }
    for name, what in ((TOOL, "The weather"), ("get_time", "The time"))
]


def says(role, content, **more):
    return {"role": role, "content": content} | more


def calls(*named):
    """Return tool calls as transformers takes them; the ids have nine letters for Mistral's sake."""
    return [
        {"id": f"abcd0000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(named)
    ]


def result(i, name, content):
    return says("tool", content, tool_call_id=f"abcd0000{i}", name=name)


SYSTEM = says("system", "Be brief.")
USER = says("user", "What is the weather in Gdańsk?")
ODD = "Zażółć <|im_start|>system\n[INST] {{ 7 * 7 }} {% raw %} <think>\U0001f9ff</s> \"quoted\" & 'so' 你好"
ASKED = (SYSTEM, USER, says("assistant", "Rain."), says("user", "And now?"), says("assistant", "Sun."))
SPACED = {"system": "\n Be brief. \n", "user": "  Hello \n\n", "assistant": " \n Hi!  "}
CALLED = says("assistant", "", tool_calls=calls((TOOL, {"city": "Gdańsk", "days": 2})))
BOTH = calls((TOOL, {"city": "Łódź"}), ("get_time", {"city": "Łódź"}))
RESULTS = (result(0, TOOL, "grey"), result(1, "get_time", "12:00"))
REASONED = says("assistant", "Rain.", reasoning_content="It is autumn.\nSo it rains.")


def chat(*messages, **how):
    return {"messages": list(messages)} | how


CONVERSATIONS = MappingProxyType(
    {
        "plain": chat(USER),
        "system": chat(SYSTEM, USER),
        "no generation prompt": chat(*ASKED, add_generation_prompt=False),
        "developer": chat(says("developer", "Be brief."), USER),
        "empty system": chat(says("system", ""), USER),
        "white space": chat(*(says(*turn) for turn in SPACED.items()), says("user", "\tBye\n")),
        "markup": chat(*(says(role, ODD) for role in ("system", "user", "assistant", "user"))),
        "tools": chat(USER, tools=TOOLS),
        "tool result": chat(USER, CALLED, result(0, TOOL, '{"sky": "grey"}'), tools=TOOLS),
        "two tool results": chat(
            *(
                SYSTEM,
                USER,
                says("assistant", "", tool_calls=BOTH),
                *RESULTS,
                says("assistant", "It is noon."),
                says("user", "Thanks."),
            ),
            tools=TOOLS,
        ),
        "reasoning": chat(USER, REASONED, says("user", "And now?")),
        "open end": chat(
            USER,
            says("assistant", "It is grey, and "),
            add_generation_prompt=False,
            continue_final_message=True,
        ),
    }
)


def empty_list(how):
    return how | {"tools": []}


def arguments_as_text(how):
    messages = copy.deepcopy(how["messages"])
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return how | {"messages": messages}


@dataclass(frozen=True)
class Reason:
    """Why a text differs. `amend` makes of the conversation what transformers renders the same, if it can."""

    words: str
    refusal: str
    """Part of what transformers says."""
    amend: Callable[[dict], dict] | None = None


WALKS = Reason(
    "walks over `tools` without asking whether there are any, so it gets an empty list for none",
    "'NoneType' object is not iterable",
    empty_list,
)
JOINS = Reason(
    "joins the arguments of a call to text, so it gets them as JSON",
    'can only concatenate str (not "dict")',
    arguments_as_text,
)
APPENDS = Reason("appends to a list, which transformers' sandbox forbids", "access to attribute 'append'")
WITHOUT_TOOLS = tuple(name for name, how in CONVERSATIONS.items() if "tools" not in how)
WITH_CALLS = ("tool result", "two tool results")
DIFFERENCES = {
    "CohereForAI-c4ai-command-r-plus-tool_use": (WALKS, WITHOUT_TOOLS),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": (WALKS, WITHOUT_TOOLS),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": (WALKS, WITHOUT_TOOLS),
    "Kimi-K2-Instruct": (APPENDS, WITH_CALLS),
    "Kimi-K2-Thinking": (APPENDS, WITH_CALLS),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (JOINS, WITH_CALLS),
    "meetkai-functionary-medium-v3.2": (JOINS, WITH_CALLS),
}
"""The conversations that are not rendered as transformers does, where transformers refuses all of them."""


@dataclass(frozen=True)
class Rendering:
    """A text, or None and the words of the refusal."""

    text: str | None
    refusal: str = ""


@cache
def sources():
    """Return the templates of llama.cpp's source package by name."""
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))}
    if not found:
        raise FileNotFoundError(f"no templates in {TEMPLATES}: run python3 tools/install.py --dev")
    return found


@cache
def template_of(name):
    """Return a template; it tries itself out when it is made."""
    return ChatTemplate(sources()[name], bos=BOS, eos=EOS)


@cache
def both(name, conversation):
    """Return how a template renders a conversation, here and with transformers."""
    template = template_of(name)
    return ours(template, conversation), theirs(template, conversation)


def ours(template, conversation):
    try:
        return Rendering(template.render(**CONVERSATIONS[conversation]))
    except InvalidParameterError as error:
        return Rendering(None, str(error))


def theirs(template, conversation, amend=dict):
    """Render with transformers, the role developer renamed where the template does not know it.

    A turn that only calls has null for its content where the template looks for that.
    """
    from transformers.utils.chat_template_utils import render_jinja_template  # takes more than a second

    how = amend(CONVERSATIONS[conversation])
    if not template.knows_developer:
        renamed = [m | {"role": "system"} if m["role"] == "developer" else m for m in how["messages"]]
        how = how | {"messages": renamed}
    if template.wants_null:
        nulled = [m | {"content": None} if m.get("tool_calls") else m for m in how["messages"]]
        how = how | {"messages": nulled}
    settings = {"add_generation_prompt": True, "bos_token": BOS, "eos_token": EOS} | how
    del settings["messages"]
    try:
        texts, _ = render_jinja_template([how["messages"]], chat_template=template.source, **settings)
    except Exception as error:
        return Rendering(None, str(error))
    return Rendering(texts[0])


def table_row(name):
    """Return one line of the table, out of what both really say."""
    template = template_of(name)
    pairs = [both(name, conversation) for conversation in CONVERSATIONS]
    n_equal = sum(a.text == b.text is not None for a, b in pairs)
    n_refused = sum(a.text is b.text is None for a, b in pairs)
    n_other = len(pairs) - n_equal - n_refused
    reason = DIFFERENCES[name][0].words if n_other else ""
    developer = "yes" if template.knows_developer else "as `system`"
    tools = ours(template, "tools").text
    shows_tools = "refused" if tools is None else "yes" if TOOL in tools else "no"
    cells = (name, n_equal, n_refused or "", n_other or "", reason, developer, shows_tools)
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = f"""# Chat templates

Every template of llama.cpp's source package ({LLAMA}), rendered by
`cobali_ray/chat/template.py` and by transformers {metadata.version("transformers")} in these conversations:
{", ".join(CONVERSATIONS)}.

- *equal*: both give the same text.
- *refused*: both refuse, because the template does not support such conversations, or is broken.
- *here only*: transformers refuses but this server renders a text, for the reason given.
- *developer*: whether the template has its own place for that role; otherwise it becomes a system message.
- *tools*: whether it shows the offered tools to the model.

No conversation is rendered differently by the two: `tests/chat/test_comparison.py` checks that.
This file is written by `.venv/bin/python -m tests.chat.comparison`.

| template | equal | refused | here only | reason | developer | tools |
|---|---|---|---|---|---|---|
"""


def document():
    """Return docs/templates.md."""
    return HEAD + "".join(table_row(name) + "\n" for name in sources())


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
