"""Splitter: takes a model's answer apart while it is written, into reasoning, content and tool calls.

Pieces of any size go in, events come out, and it makes no difference to their joined texts where the pieces
were cut. Nothing is read twice. Held back is what may yet be a marker, white space at the end, and of a call
what cannot be told before more of it is there: its name, and values whose encoding their end decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from cobali_ray.chat.answer_events import (
    CallArguments,
    CallBegun,
    CallBroken,
    CallEnded,
    ContentText,
    Event,
    ReasoningText,
    append,
)
from cobali_ray.chat.format import Format, Kind
from cobali_ray.chat.reading import BrokenError, Reader, Reading, Sink, escaped
from cobali_ray.chat.values import ArgumentTypes, json_of

MAX_HEAD = 300
"""Characters of a call before its arguments; longer ones are none."""


class Splitter(Reader):
    """One answer's state.

    `prompt` is what the answer continues: it may have opened the reasoning already, and if it `continues` a
    text, that is in the middle of it. `tools` are those that were offered, in the shape of the API; they tell
    which arguments are strings where the format does not. Without any, calls are content.
    """

    def __init__(
        self,
        form: Format,
        *,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        continues: bool = False,
    ) -> None:
        super().__init__(form.primes(prompt), quote=form.calls.quote)
        self._form, self._calls = form, form.calls
        functions = (tool.get("function", tool) for tool in tools)
        self._tools = {function["name"]: function.get("parameters") for function in functions}
        self._events: list[Event] = []
        self._index = -1
        self._begun = self._unmarked = False
        self.thinking = form.opens_reasoning(prompt)
        """Whether what comes next is reasoning, as far as can be told."""
        self._continues = continues
        self._quiet = not continues and (self.thinking or form.padded or form.follows_reasoning(prompt))
        self._space, self._first = "", self.thinking or not continues
        self._reading = self._read()

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of the answer and return its events."""
        self._text = self._text[self._at :] + text
        self._at = 0
        next(self._reading, None)
        events, self._events = self._events, []
        return events

    def end(self) -> list[Event]:
        """Return the events of the answer's end: everything that was held back."""
        self._ended = True
        return self.feed("")

    def cut(self) -> list[Event]:
        """Return the events of an answer that was cut off here, without what it had only begun.

        That is a marker, a call that has no name yet, and a value whose encoding its end decides. An object
        that may have been a call without its marker is content.
        """
        if self._raw is None:
            self._say_space()
        elif self._unmarked and not self._begun:
            self._say("".join(self._raw) + self._text[self._at :])
            self._say_space()
        events, self._events = self._events, []
        return events

    # Text that is no call

    def _read(self) -> Reading:
        if self._calls.kind is Kind.CHANNELS:
            yield from self._read_channels()
            return
        while True:
            yield from self._unmarked_call()
            marker = yield from self._until(self._markers(), self._say)
            if not marker:
                self._say_space()
                return
            # The text before it may have made it a word like any other.
            leads_to = self._markers().get(marker)
            if leads_to is None:
                self._say(marker)
            else:
                yield from self._at_marker(marker, leads_to)

    def _markers(self) -> dict[str, str]:
        """Return what would change the state now, and to what."""
        form, calls = self._form, self._calls
        states: dict[str, str] = {}
        if self.thinking:
            states |= {form.reasoning_end: "content", form.content_start: "content"}
        else:
            for marker in form.noise:
                names = self._tools if "{name}" in marker else ("",)
                states |= {marker.replace("{name}", name): "noise" for name in names}
            states |= {form.content_end: "noise", form.content_start: "noise"}
            if self._first or self._quiet:
                # Further on these are words like any other.
                states |= {form.reasoning_end: "noise", form.reasoning_start: "reasoning"}
        if self._tools:
            states |= dict.fromkeys([calls.section_start, *calls.starts], "call")
        states.pop("", None)
        return states

    def _at_marker(self, marker: str, leads_to: str) -> Reading:
        if leads_to == "call":
            self._raw = [self._space, marker]
            self._space = ""
            yield from self._section(marker)
            return
        self._space = ""
        if leads_to != "noise":
            self.thinking = leads_to == "reasoning"
        self._quiet = True
        self._first = self._first and self.thinking

    def _say(self, text: str) -> None:
        """Add text, but hold back the white space at its end until it is known what comes after it."""
        text = self._space + text
        if self._quiet:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._quiet = self._first = False
            self._tell(kept)

    def _apart(self) -> Sink:
        """Return what adds text behind other text of a message before it."""
        gap = "\n\n"

        def say(text: str) -> None:
            nonlocal gap
            self._say(gap + text)
            gap = ""

        return say

    def _say_space(self) -> None:
        if self._space and not self._quiet:
            self._tell(self._space)
        self._space = ""

    def _tell(self, text: str) -> None:
        append(self._events, ReasoningText(text) if self.thinking else ContentText(text))

    # Calls

    def _unmarked_call(self) -> Reading:
        """Read an object that the answer begins with, if it is a call without its markers."""
        is_begin = not self.thinking and (self._first or self._quiet)
        has_name = self._calls.kind is Kind.JSON and self._calls.name_field
        if not (is_begin and has_name and self._tools):
            return
        while (char := (yield from self._peek())).isspace():
            self._say(self._take(1))
        if char == "{":
            self._raw = [self._space]
            self._space = ""
            yield from self._section("", known_only=True)

    def _section(self, opener: str, *, known_only: bool = False) -> Reading:
        """Read calls until something else comes. What is no call is text of the part it stands in."""
        calls, thinks = self._calls, self.thinking
        readers = {
            Kind.JSON: self._json_calls,
            Kind.TAG_JSON: self._tagged_calls,
            Kind.TAGS: self._tagged_calls,
            Kind.ELEMENTS: self._tagged_calls,
            Kind.PYTHON: self._python_calls,
        }
        try:
            self._begun, self._unmarked = False, not opener
            yield from readers[calls.kind](opener, known_only or calls.known_only)
        except BrokenError:
            raw = "".join(self._raw or ())
            if self._begun:
                self._events.append(CallBroken(self._index, raw))
                self.thinking = self._first = self._quiet = False
            else:
                self._say(raw)
                self.thinking = thinks
        else:
            self.thinking = self._first = False
            self._quiet = True
        finally:
            self._raw = None

    def _begin(self, name: str, known_only: bool = False) -> None:
        name = name.strip()
        if not name or (known_only and name not in self._tools):
            raise BrokenError
        self._index += 1
        self._begun = True
        self._events.append(CallBegun(self._index, name))

    def _argue(self, text: str) -> None:
        if text:
            append(self._events, CallArguments(self._index, text))

    def _finish(self) -> None:
        self._events.append(CallEnded(self._index))
        self._begun = self._unmarked = False
        self._raw = []

    def _json_calls(self, opener: str, known_only: bool) -> Reading:
        n_calls, is_list = 0, False
        if opener and (yield from self._skip("")) == "[":
            self._take(1)
            is_list = True
        while True:
            between = "," if is_list or (opener and self._calls.end) else "" if opener else ";"
            char = yield from self._skip(between if n_calls else "")
            if char != "{":
                break
            yield from self._json_call(known_only)
            n_calls += 1
        if not n_calls:
            raise BrokenError
        if is_list:
            yield from self._accept("]")
        if opener:
            yield from self._accept(self._calls.end)

    def _json_call(self, known_only: bool) -> Reading:
        calls = self._calls
        names = (calls.name_field, "name")
        bodies = (calls.arguments_field, "arguments", "parameters")
        ids = (calls.id_field, "id")
        held: list[str] | None = None
        done = False
        self._take(1)
        while True:
            char = yield from self._skip(",")
            if char == "}":
                self._take(1)
                break
            parts: list[str] = []
            yield from self._value(parts.append, key=True)
            key = _string(parts)
            yield from self._colon()
            if not calls.name_field:
                if done:
                    raise BrokenError
                self._begin(key, known_only)
                yield from self._object(self._argue)
                done = True
            elif key in names and not self._begun:
                yield from self._value((name := list[str]()).append)
                self._begin(_string(name), known_only or key != calls.name_field)
                if held is not None:
                    self._argue("".join(held))
            elif key in bodies and held is None and not done:
                if self._begun:
                    yield from self._object(self._argue)
                    done = True
                else:
                    held = []
                    yield from self._object(held.append)
            elif known_only and key not in {*names, *bodies, *ids, "type"}:
                raise BrokenError  # an answer in JSON, not a call
            else:
                yield from self._value(lambda _: None)
        if not self._begun:
            raise BrokenError
        if not done and held is None:
            self._argue("{}")
        self._finish()

    def _tagged_calls(self, opener: str, known_only: bool) -> Reading:
        calls = self._calls
        starts = calls.starts
        start = opener if opener in starts else ""
        n_calls = 0
        while True:
            if not start:
                start = yield from self._accept(*starts)
            if not start:
                break
            yield from self._tagged_call(known_only)
            n_calls += 1
            start = ""
        if not n_calls:
            raise BrokenError
        yield from self._accept(calls.section_end)

    def _tagged_call(self, known_only: bool) -> Reading:
        calls = self._calls
        name = yield from self._name()
        match = re.fullmatch(calls.naming, name, re.DOTALL)
        if match is None:
            raise BrokenError
        self._begin(match["name"], known_only)
        if calls.kind is Kind.TAG_JSON:
            yield from self._object(self._argue)
        else:
            yield from self._tagged_arguments(match["name"].strip())
        self._finish()
        for part in calls.end.split():
            yield from self._accept(part)

    def _name(self) -> Generator[None, None, str]:
        """Read what stands between the beginning of a call and its arguments."""
        calls, parts = self._calls, list[str]()
        inside = "{" if calls.kind is Kind.TAG_JSON else calls.key_start
        stops = {calls.name_end, inside, (calls.end.split() or [""])[0]}
        marker = yield from self._until(stops - {""}, parts.append, limit=MAX_HEAD)
        if not marker:
            raise BrokenError
        if marker != calls.name_end:
            self._give_back(marker)
        return "".join(parts).strip()

    def _tagged_arguments(self, name: str) -> Reading:
        calls = self._calls
        types = ArgumentTypes(self._tools.get(name))
        ends = calls.end.split()
        self._argue("{")
        n_arguments = 0
        while True:
            marker = yield from self._accept(*ends[:1], calls.key_start)
            if marker != calls.key_start:
                break
            self._argue(", " if n_arguments else "")
            n_arguments += 1
            if calls.kind is Kind.ELEMENTS:
                yield from self._element(types)
            else:
                yield from self._tagged_argument(types)
        if ends and not marker:
            raise BrokenError
        if marker:
            self._give_back(marker)
        self._argue("}")

    def _tagged_argument(self, types: ArgumentTypes) -> Reading:
        calls, parts = self._calls, list[str]()
        starts = {calls.string_start: "raw", calls.string_start.strip(): "raw"}
        starts[calls.string_start.replace("\n", "")] = "raw"
        starts |= dict.fromkeys(calls.json_starts, "json")
        start = yield from self._until(starts, parts.append)
        if not start:
            raise BrokenError
        key = "".join(parts).strip()
        self._argue(json.dumps(key, ensure_ascii=False) + ": ")
        ends = [calls.value_end, calls.value_end.strip()]
        if calls.cdata and (yield from self._accept("<![CDATA[", spaces=False)):
            ends = ["]]>" + end for end in ends]
        plain = calls.json_starts or types.is_string(types.of(key))
        if starts[start] == "raw" and plain:
            self._argue('"')
            end = yield from self._until(ends, lambda text: self._argue(escaped(text)))
            self._argue('"')
        else:
            value = list[str]()
            end = yield from self._until(ends, value.append)
            self._argue(types.converted("".join(value), types.of(key)))
        if not end:
            raise BrokenError

    def _element(self, types: ArgumentTypes) -> Reading:
        """Read an argument as an element: strings as they come, everything else as a whole."""
        mark = self._calls.key_start
        if (yield from self._peek()) != "<":
            raise BrokenError
        self._take(1)
        parts: list[str] = []
        if not (yield from self._until([">"], parts.append)):
            raise BrokenError
        key = "".join(parts)
        end = f"{mark}</{key}>"
        self._argue(json.dumps(key, ensure_ascii=False) + ": ")
        if types.is_string(types.of(key)):
            self._argue('"')
            closed = yield from self._until([end], lambda text: self._argue(escaped(text)))
            self._argue('"')
        else:
            inside: list[str] = []
            closed = yield from self._until([end], inside.append)
            self._argue(json_of(types.from_elements("".join(inside), mark, types.of(key))))
        if not closed:
            raise BrokenError

    def _python_calls(self, _: str, known_only: bool) -> Reading:
        if (yield from self._skip("")) != "[":
            raise BrokenError
        self._take(1)
        while (yield from self._skip(",")) != "]":
            parts: list[str] = []
            if not (yield from self._until(["(", "]"], parts.append)):
                raise BrokenError
            self._begin("".join(parts), known_only)
            yield from self._python_arguments()
            self._finish()
        self._take(1)
        yield from self._accept(self._calls.section_end)

    def _python_arguments(self) -> Reading:
        self._argue("{")
        n_arguments = 0
        while (yield from self._skip(",")) != ")":
            parts: list[str] = []
            if not (yield from self._until(["="], parts.append)):
                raise BrokenError
            self._argue(", " if n_arguments else "")
            self._argue(json.dumps("".join(parts).strip(), ensure_ascii=False) + ": ")
            n_arguments += 1
            yield from self._value(self._argue, loose=True)
        self._take(1)
        self._argue("}")

    # Harmony: every message says to whom and on which channel

    def _read_channels(self) -> Reading:
        calls = self._calls
        ends = ["<|end|>", calls.end, "<|return|>", "<|start|>", calls.start]
        if self._continues and not (yield from self._end_of_message(ends, self._say)):
            return
        before = False if self._continues else None  # whether the last message was reasoning
        while True:
            yield from self._skip("")
            head: list[str] = []
            self._raw = []
            opener = yield from self._accept("<|start|>", calls.start, "to=")
            words = ""
            if opener:
                try:
                    stop = yield from self._until([calls.name_end], head.append, limit=MAX_HEAD)
                except BrokenError:
                    stop = ""
                words = opener + "".join(head) if stop else ""
            self.thinking = self._form.reads_reasoning and "<|channel|>analysis" in words
            self._quiet = False
            if opener and not words:
                self._say("".join(self._raw))
            recipient = re.search(r"to=(?:functions\.)?([\w.\-]+)", words)
            name = "" if recipient is None else recipient[1]
            if name in self._tools and (yield from self._skip("")) == "{":
                try:
                    self._begun = False
                    self._begin(name)
                    yield from self._object(self._argue)
                    self._finish()
                    end = yield from self._end_of_message(ends, lambda _: None)
                except BrokenError:
                    self.thinking = False
                    self._events.append(CallBroken(self._index, "".join(self._raw)))
                    self._raw = None
                    end = yield from self._end_of_message(ends, self._say)
            else:
                self._raw = None
                is_next, before = before == self.thinking, self.thinking
                end = yield from self._end_of_message(ends, self._apart() if is_next else self._say)
            if not end:
                return

    def _end_of_message(self, ends: Sequence[str], sink: Sink) -> Generator[None, None, str]:
        """Pass on what is left of a message and return what ends it; "" at the end of the answer."""
        end = yield from self._until(ends, sink)
        self._say_space()
        if end in ("<|start|>", self._calls.start):
            self._give_back(end)
        return end

    # The arguments as one object

    def _object(self, sink: Sink) -> Reading:
        """Read arguments: an object, the text of one in a string, or nothing at all."""
        char = yield from self._skip("")
        if char == "{":
            yield from self._value(sink)
            return
        parts: list[str] = []
        yield from self._value(parts.append)
        text = _string(parts) if parts[0] == '"' else "{}" if parts == ["null"] else ""
        try:
            is_object = isinstance(json.loads(text or "{}"), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object or (not text and parts[0] != '"'):
            raise BrokenError
        sink(text.strip() or "{}")


def _string(parts: list[str]) -> str:
    """Decode the JSON of a string. Half of a surrogate pair is no text."""
    try:
        value = json.loads("".join(parts))
        if isinstance(value, str):
            value.encode()
            return value
    except ValueError:
        pass
    raise BrokenError
