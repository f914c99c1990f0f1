"""Format: how a model writes reasoning and tool calls; and formats whose template does not tell enough.

All others are derived from their chat templates (`derivation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class Kind(StrEnum):
    """How one call is written."""

    JSON = "JSON"
    """One JSON object with the name and the arguments."""
    TAG_JSON = "tag, JSON"
    """The name in a tag, then the arguments as one object."""
    TAGS = "tags"
    """The name in a tag, then each argument between tags of its own."""
    ELEMENTS = "elements"
    """As TAGS, but arguments are elements named after their keys, down to the items of lists."""
    PYTHON = "Python"
    """`[name(key=value, ...), ...]`"""
    CHANNELS = "channels"
    """Messages with a header that names a channel and a recipient; the arguments are the body."""


ID, NUMBER = "\x00", "\x01"
"""What stands for a call's id and its number among the texts around its name."""
HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
"""The tokens that messages on channels are put together from, but for those that end the answer."""
_NAMING = re.compile(r"\(\?P<(name|id)>\.\+\??\)|(\\d\+)|((?:\\[^d]|[^\\()?])+)|\(\?:|\)\??")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How calls are written. Markers are without the white space around them; "" is one that is not there.

    A turn's calls are `section_start`, for each call `start` name `name_end` arguments `end`, then
    `section_end`. Of the object of a JSON call the fields are named here instead.
    """

    kind: Kind
    section_start: str = ""
    section_end: str = ""
    start: str = ""
    naming: str = "(?P<name>.+)"
    """What stands between `start` and `name_end`: the name, and maybe an id or the number of the call."""
    name_end: str = ""
    end: str = ""
    parallel: bool = True
    """Whether one turn can have several calls."""
    known_only: bool = False
    """Whether only the name of an offered tool makes it a call, because `start` is no marker of its own."""

    name_field: str = "name"
    """"" where the name is the key of the arguments."""
    arguments_field: str = "arguments"
    id_field: str = ""
    fields: tuple[str, ...] = ()
    """All fields in the template's order; () are the name and the arguments."""
    joined: Literal["", "list", "lines"] = ""
    """How several JSON calls stand between one `start` and `end`; "" where each has its own."""

    key_start: str = ""
    string_start: str = ""
    """From an argument's key to its value, if that is a string written as it is, with its white space."""
    json_starts: tuple[str, ...] = ()
    """The same if it is JSON; none where the two look the same and the tool's schema has to tell."""
    value_end: str = ""
    """With its white space, like `string_start`."""
    cdata: bool = False
    """Whether a string may stand in `<![CDATA[` and `]]>`."""
    python: bool = False
    """Whether lists and objects are written as Python shows them."""

    quote: str = ""
    """What strings stand in, instead of quotes and escapes; then keys stand bare."""

    @property
    def starts(self) -> list[str]:
        """What may open one call: its marker, without white space, and its last tag alone."""
        openers = [self.start]
        if re.fullmatch(r"<[^\s]*\s+<[^\s]*", self.start):
            openers += [re.sub(r"\s+", "", self.start), self.start.split()[-1]]
        return openers

    def around_name(self) -> tuple[list[str], list[str]]:
        """Return what stands before a name and behind it: texts, `ID` and `NUMBER`."""
        before, behind = list[str](), list[str]()
        parts = before
        for name, number, words in _NAMING.findall(self.naming):
            if name == "name":
                parts = behind
            elif name or number or words:
                parts.append(ID if name else NUMBER if number else re.sub(r"\\(.)", r"\1", words))
        return before, behind


class ReasoningMarks(NamedTuple):
    """The texts around the reasoning of one answer."""

    start: str
    """"" where the prompt has begun it."""
    end: str
    closing: str
    """What has to be written to end it and go on with the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What the parts of a model's answer look like."""

    calls: CallFormat
    native: bool = True
    """Whether it is the model's own; else the prompt has to explain it, see `generic.py`."""
    renders_calls: bool = True
    """Whether the template shows earlier calls; else they go into the content, see `generic.py`."""
    reasoning_start: str = ""
    reasoning_end: str = ""
    content_start: str = ""
    content_end: str = ""
    padded: bool = False
    """Whether white space before the first word is the template's and not the answer's."""
    noise: tuple[str, ...] = ()
    """Markers that say nothing; `{name}` in one stands for the name of an offered tool."""
    reads_reasoning: bool = True
    """Whether a channel of reasoning is read as that; else it is content like any other."""
    primer: str = ""
    """The beginning of a marker that a prompt may end with, the rest of which is the answer's."""
    turn_end: str = ""
    """What stands behind a turn of text, and `call_turn_end` behind one of calls; mostly one end token."""
    call_turn_end: str = ""

    @property
    def plain(self) -> bool:
        """Whether an answer without calls is text and nothing else."""
        around = (self.reasoning_start, self.content_start, self.content_end, *self.noise)
        return not any(around) and self.calls.kind is not Kind.CHANNELS

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker of an answer; of control tokens in them, the answer has to show the text."""
        calls = self.calls
        markers = [calls.section_start, calls.section_end, calls.start, calls.name_end, calls.end]
        markers += [part for side in calls.around_name() for part in side if part not in (ID, NUMBER)]
        markers += [calls.key_start, calls.string_start, *calls.json_starts, calls.value_end, calls.quote]
        markers += [self.reasoning_start, self.reasoning_end, self.content_start, self.content_end]
        markers += [marker.replace("{name}", "") for marker in self.noise]
        markers += HARMONY if calls.kind is Kind.CHANNELS else ()
        return tuple(dict.fromkeys(marker for marker in markers if marker))

    def opens_reasoning(self, prompt: str) -> bool:
        """Tell whether the answer to this prompt begins inside reasoning."""
        return bool(self.reasoning_start) and prompt.rstrip().endswith(self.reasoning_start)

    def reasoning_marks(self, prompt: str) -> ReasoningMarks | None:
        """Return what stands around the reasoning of an answer to this prompt; None where nothing does."""
        if self.calls.kind is Kind.CHANNELS:
            head, end = f"{self.calls.start}analysis{self.calls.name_end}", "<|end|>"
            return ReasoningMarks(
                head, end, f"{end}<|start|>assistant{self.calls.start}final{self.calls.name_end}"
            )
        if not self.reasoning_end:
            return None
        start = "" if self.opens_reasoning(prompt) else self.reasoning_start
        return ReasoningMarks(start, self.reasoning_end, self.reasoning_end)

    def follows_reasoning(self, prompt: str) -> bool:
        """Tell whether the prompt has reasoning, mostly an empty one, that it also closes."""
        return bool(self.reasoning_end) and prompt.rstrip().endswith(self.reasoning_end)

    def primes(self, prompt: str) -> str:
        """Return the part of the answer's first marker that the prompt has already."""
        return self.primer if self.primer and prompt.endswith(self.primer) else ""


GENERIC = CallFormat(kind=Kind.JSON, start="<tool_call>", end="</tool_call>")
"""For models that were never shown a call."""


@dataclass(frozen=True, slots=True)
class KnownFormat:
    """A format that derivation does not find, and how to know its template."""

    recognise: Callable[[str], bool]
    calls: CallFormat | None = None
    """None: as derived."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What else of the Format is otherwise than derived."""


def _has(*parts: str) -> Callable[[str], bool]:
    return lambda source: all(part in source for part in parts)


KNOWN_FORMATS = MappingProxyType(
    {
        "Gemma 4": KnownFormat(
            _has("<|tool_call>call:", '<|"|>'),
            CallFormat(kind=Kind.TAG_JSON, start="<|tool_call>call:", end="<tool_call|>", quote='<|"|>'),
            {
                "reasoning_start": "<|channel>thought",
                "reasoning_end": "<channel|>",
                "content_start": "",
                "noise": ("<|channel>", "<channel|>", "<|channel>thought\n<channel|>"),
            },
        ),
        "harmony": KnownFormat(
            _has("<|channel|>", "<|message|>", "<|call|>"),
            CallFormat(
                kind=Kind.CHANNELS,
                start="<|channel|>",
                name_end="<|message|>",
                end="<|call|>",
                parallel=False,
            ),
            {"content_start": "", "content_end": "", "reasoning_start": "", "reasoning_end": ""},
        ),
        "muse": KnownFormat(
            _has(" to=", "atem:function_calls"),
            CallFormat(
                kind=Kind.TAGS,
                section_start="<atem:function_calls>",
                section_end="</atem:function_calls>",
                start='<atem:invoke name="',
                name_end='">',
                end="</atem:invoke>",
                key_start='<atem:parameter name="',
                string_start='">',
                value_end="</atem:parameter>",
            ),
            {
                "reasoning_start": "to=self<|message|>",
                "reasoning_end": "<|eom|>",
                "content_start": "to=user<|message|>",
                "noise": ("<|eom|>", "<|start|>assistant", "to={name}<|message|>"),
            },
        ),
        "Kimi K3": KnownFormat(
            _has("<|open|>", "<|close|>", "<|sep|>"),
            CallFormat(
                kind=Kind.TAGS,
                section_start="<|open|>tools<|sep|>",
                section_end="<|close|>tools<|sep|>",
                start='<|open|>call tool="',
                naming=r'(?P<name>.+?)(?:" index="\d+)?',
                name_end='"<|sep|>',
                end="<|close|>call<|sep|>",
                key_start='<|open|>argument key="',
                string_start='" type="string"<|sep|>',
                json_starts=tuple(
                    f'" type="{kind}"<|sep|>' for kind in ("number", "boolean", "null", "array", "object")
                ),
                value_end="<|close|>argument<|sep|>",
            ),
            {
                "reasoning_start": "<|open|>think<|sep|>",
                "reasoning_end": "<|close|>think<|sep|>",
                "content_start": "<|open|>response<|sep|>",
                "content_end": "<|close|>response<|sep|>",
                "noise": ("<|close|>message<|sep|>",),
            },
        ),
        "functionary 3.2": KnownFormat(
            _has(">>>", "all\\n", "recipient"),
            CallFormat(kind=Kind.TAG_JSON, start=">>>", name_end="\n", known_only=True),
            {"content_start": ">>>all\n", "content_end": "", "primer": ">>>"},
        ),
        "MiniMax M3": KnownFormat(
            _has("]<]minimax[>["),
            CallFormat(
                kind=Kind.ELEMENTS,
                section_start="]<]minimax[>[<tool_call>",
                section_end="]<]minimax[>[</tool_call>",
                start=']<]minimax[>[<invoke name="',
                name_end='">',
                end="]<]minimax[>[</invoke>",
                key_start="]<]minimax[>[",
            ),
        ),
        "Llama 3": KnownFormat(
            _has("Environment: ipython", '"parameters": '), None, {"noise": ("<|python_tag|>",)}
        ),
        "LFM2": KnownFormat(
            _has("List of tools: "),
            CallFormat(
                kind=Kind.PYTHON, section_start="<|tool_call_start|>", section_end="<|tool_call_end|>"
            ),
        ),
        "Granite 3.3": KnownFormat(
            _has("respond only with <|tool_call|> followed by a JSON list"),
            CallFormat(kind=Kind.JSON, start="<|tool_call|>", joined="list"),
        ),
        "Phi-4": KnownFormat(
            _has("<|tool|>", "<|/tool|>"),
            CallFormat(kind=Kind.JSON, start="<|tool_call|>", end="<|/tool_call|>", joined="list"),
        ),
    }
)
