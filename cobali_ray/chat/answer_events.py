"""Events of a model's answer, as a splitter finds them: reasoning, content, tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReasoningText:
    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call's name is known. Its id, if the model writes one, is passed over: clients get others."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments are one complete JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """What looked like a call turned out to be none after its name was sent, or the answer ended in it.

    `text` is all of it as the model wrote it, which is content.
    """

    index: int
    text: str


Event = ReasoningText | ContentText | CallBegun | CallArguments | CallEnded | CallBroken


@dataclass(slots=True)
class ToolCall:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedAnswer:
    """Events added up."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> ParsedAnswer:
        for event in events:
            match event:
                case ReasoningText(text):
                    self.reasoning += text
                case ContentText(text):
                    self.content += text
                case CallBegun(index, name):
                    self.calls[index] = ToolCall(name)
                case CallArguments(index, text):
                    self.calls[index].arguments += text
                case CallBroken(index, text):
                    del self.calls[index]
                    self.content += text
                case CallEnded():
                    pass
        return self


def append(events: list[Event], event: Event) -> None:
    """Add an event, as part of the last one if it says more of the same."""
    last = events[-1] if events else None
    if isinstance(event, ContentText) and isinstance(last, ContentText):
        events[-1] = ContentText(last.text + event.text)
    elif isinstance(event, ReasoningText) and isinstance(last, ReasoningText):
        events[-1] = ReasoningText(last.text + event.text)
    elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
        events[-1] = CallArguments(last.index, last.text + event.text)
    else:
        events.append(event)
