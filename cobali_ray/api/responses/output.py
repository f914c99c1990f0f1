"""Output: the items of one response as they are written, and the stream events of each. Pure.

The order of events is: an item is added, grows and is done before the next is added. The events of an item
add up to what its last event and the finished response say. Ids are given once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from cobali_ray.api.reply.logprobs import WholeLogprobs, chat_content, chat_logprob_items
from cobali_ray.api.responses.tools import Callee, custom_input
from cobali_ray.chat.answer_events import (
    CallArguments,
    CallBegun,
    CallBroken,
    CallEnded,
    ContentText,
    Event,
    ReasoningText,
)
from cobali_ray.core.request.events import TokenLogprob

StreamEvent: TypeAlias = dict[str, Any]
"""One event of a stream, without its number."""
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class _Item(ABC):
    """One item. `prefix` begins its ids."""

    prefix: str

    def __init__(self, answer_id: str, index: int) -> None:
        self.item_id, self._index = f"{self.prefix}_{answer_id}_{index}", index
        self.status: Status = "in_progress"
        self.broken = False
        """Whether it turned out to be something else."""
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the item as it stands in a response."""

    def begin(self) -> list[StreamEvent]:
        return [self._of_item("added")]

    @abstractmethod
    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[StreamEvent]:
        """Take further text."""

    def finish(self, status: Status) -> list[StreamEvent]:
        self.status = status
        return [*self._ends(), self._of_item("done")]

    @abstractmethod
    def _ends(self) -> list[StreamEvent]: ...

    def _of_item(self, what: str) -> StreamEvent:
        kind = f"response.output_item.{what}"
        return {"type": kind, "output_index": self._index, "item": self.body()}

    def _event(self, kind: str, **more: Any) -> StreamEvent:
        return {"type": f"response.{kind}", "item_id": self.item_id, "output_index": self._index, **more}


class _Worded(_Item):
    """An item with one part of text, which `kind` names."""

    kind: str

    def begin(self) -> list[StreamEvent]:
        bare = self._of_item("added")
        bare["item"]["content"] = []
        return [bare, self._event("content_part.added", content_index=0, part=self.part())]

    @abstractmethod
    def part(self) -> dict[str, Any]:
        """Return the part."""

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[StreamEvent]:  # noqa: ARG002 some have none
        self._texts.append(text)
        return [self._event(f"{self.kind}.delta", content_index=0, delta=text)]

    def _ends(self) -> list[StreamEvent]:
        return [
            self._event(f"{self.kind}.done", content_index=0, text=self.text),
            self._event("content_part.done", content_index=0, part=self.part()),
        ]


class _Thought(_Worded):
    prefix, kind = "rs", "reasoning_text"

    def body(self) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "reasoning",
            "summary": [],
            "content": [self.part()],
            "encrypted_content": None,
            "status": self.status,
        }

    def part(self) -> dict[str, Any]:
        return {"type": self.kind, "text": self.text}


class _Message(_Worded):
    prefix, kind = "msg", "output_text"

    def __init__(self, answer_id: str, index: int) -> None:
        super().__init__(answer_id, index)
        self._logprobs = WholeLogprobs(chat_content)

    def body(self) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": [self.part()],
        }

    def part(self) -> dict[str, Any]:
        logprobs = self._logprobs.json()["content"]
        return {"type": self.kind, "text": self.text, "annotations": [], "logprobs": logprobs}

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[StreamEvent]:
        self._logprobs.add(logprobs)
        return [event | {"logprobs": chat_logprob_items(logprobs)} for event in super().grow(text, logprobs)]

    def _ends(self) -> list[StreamEvent]:
        text, part = super()._ends()
        return [text | {"logprobs": self._logprobs.json()["content"]}, part]


class _Call(_Item):
    prefix = "fc"

    def __init__(self, answer_id: str, index: int, call_id: str, callee: Callee) -> None:
        super().__init__(answer_id, index)
        self._call_id, self._callee = call_id, callee

    def body(self) -> dict[str, Any]:
        return self._of_kind("function_call", arguments=self.text)

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[StreamEvent]:  # noqa: ARG002 calls have none
        self._texts.append(text)
        return [self._event("function_call_arguments.delta", delta=text)]

    def _ends(self) -> list[StreamEvent]:
        done = "function_call_arguments.done"
        return [self._event(done, name=self._callee.name, arguments=self.text)]

    def _of_kind(self, kind: str, **more: Any) -> dict[str, Any]:
        space = {"namespace": self._callee.namespace} if self._callee.namespace else {}
        return {
            "id": self.item_id,
            "type": kind,
            "status": self.status,
            "call_id": self._call_id,
            "name": self._callee.name,
            **more,
            **space,
        }


class _CustomCall(_Call):
    """The call of a custom tool. Its text is sent at once: the model writes it as JSON."""

    prefix = "ctc"

    def body(self) -> dict[str, Any]:
        return self._of_kind("custom_tool_call", input=custom_input(self.text))

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[StreamEvent]:  # noqa: ARG002 calls have none
        self._texts.append(text)
        return []

    def _ends(self) -> list[StreamEvent]:
        text = custom_input(self.text)
        return [
            self._event("custom_tool_call_input.delta", delta=text),
            self._event("custom_tool_call_input.done", input=text),
        ]


class ResponseOutput:
    def __init__(
        self, answer_id: str, callees: Mapping[str, Callee], call_id_of: Callable[[int], str]
    ) -> None:
        """`callees` are tools by the names that the model knows; `call_id_of` has an id for the n-th call."""
        self._answer_id, self._callees, self._call_id_of = answer_id, callees, call_id_of
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._logprobs: list[TokenLogprob] = []
        """Of tokens that may yet be text, as those of what only looked like a call."""

    def take(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[StreamEvent]:
        """Return the stream events for events of the answer. `logprobs` are of the tokens that made them."""
        self._logprobs += logprobs
        stream_events: list[StreamEvent] = []
        for event in events:
            match event:
                case ContentText(text):
                    stream_events += self._grow(_Message, text)
                case ReasoningText(text):
                    self._logprobs.clear()
                    stream_events += self._grow(_Thought, text)
                case CallBegun(index, name):
                    callee = self._callees.get(name, Callee("function", name))
                    kind = _CustomCall if callee.kind == "custom" else _Call
                    call = kind(self._answer_id, len(self._items), self._call_id_of(index), callee)
                    stream_events += [*self._end("completed"), *self._begin(call)]
                case CallArguments(_, text) if self._open is not None:
                    stream_events += self._open.grow(text, ())
                case CallEnded():
                    stream_events += self._end("completed")
                    self._logprobs.clear()
                case CallBroken(_, text):
                    if self._open is not None:
                        self._open.broken = True
                    stream_events += [*self._end("incomplete"), *self._grow(_Message, text)]
        return stream_events

    def close(self, *, cut: bool) -> list[StreamEvent]:
        """Return the stream events of the answer's end. `cut`: it had to end there."""
        events: list[StreamEvent] = []
        if self._logprobs and isinstance(self._open, _Message):
            events += self._grow(_Message, "")
        events += self._end("incomplete" if cut else "completed")
        if not self._items or not (cut or any(not isinstance(item, _Thought) for item in self._items)):
            # Clients expect a message.
            events += [*self._grow(_Message, ""), *self._end("incomplete" if cut else "completed")]
        return events

    def bodies(self) -> list[dict[str, Any]]:
        return [item.body() for item in self._items]

    def kept(self) -> list[dict[str, Any]]:
        """Return the items but those that only looked like calls."""
        return [item.body() for item in self._items if not item.broken]

    def _grow(self, kind: type[_Message | _Thought], text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if not isinstance(self._open, kind):
            events += [*self._end("completed"), *self._begin(kind(self._answer_id, len(self._items)))]
        if self._open is not None and (text or self._logprobs):
            events += self._open.grow(text, self._logprobs)
            self._logprobs = []
        return events

    def _begin(self, item: _Item) -> list[StreamEvent]:
        self._items.append(item)
        self._open = item
        return item.begin()

    def _end(self, status: Status) -> list[StreamEvent]:
        item, self._open = self._open, None
        return item.finish(status) if item is not None else []
