"""Derivation: a model's format found out from its chat template.

What a model was trained to write is what its template renders for an assistant's turn. So a few turns that
differ in one thing each are rendered, and what differs between them is the format. Where that does not tell
enough, `KNOWN_FORMATS` has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from cobali_ray.chat.format import GENERIC, ID, KNOWN_FORMATS, NUMBER, CallFormat, Format, Kind
from cobali_ray.chat.template import ChatTemplate
from cobali_ray.errors import InvalidParameterError

THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""Markers that a template may name although it never shows earlier reasoning."""

N_MARKER = 3
"""Characters below which a text is too common to begin a call."""

_NAMES = ("ffalpha_x", "ffbeta_y")
_KEYS = ("kkone_x", "kktwo_y")
_VALUES = ("vvone x", "vvtwo y")
_IDS = ("abcd00001", "wxyz00002")
_CONTENT, _THOUGHT = "ttcontent", "rrthought"
_USER = {"role": "user", "content": "uuquestion"}
_TAG = re.compile(r"<[^<>\s][^<>]*>|\[/?[A-Z_]+\]")
_TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": "d"} for key in _KEYS},
                "required": [_KEYS[0]],
            },
        },
    }
    for name in _NAMES
)


def derive(template: ChatTemplate) -> Format:
    """Find out a template's format. It takes some twenty renderings of very short chats."""
    probe = _Probe(template)
    own = next((own for own in KNOWN_FORMATS.values() if own.recognise(template.source)), None)
    calls = own.calls if own is not None and own.calls is not None else _calls(probe)
    form = _around(probe, calls or GENERIC)
    form = replace(form, native=calls is not None, renders_calls=probe.one is not None)
    return replace(form, **own.changes) if own is not None else form


class _Probe:
    """Renders assistants' turns and knows what stands before them."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._tools: tuple[dict[str, Any], ...] | None = _TOOLS
        if self._render([_USER]) is None:
            self._tools = None
        self._content: str | None = ""
        self.cut = ""
        base = self._render([_USER]) or ""
        prompt = self._render([_USER], add_generation_prompt=True) or ""
        self.source = template.source
        self._base = base
        self.prompt = prompt[_n_shared(prompt, base) :]
        # What stands around the content of a turn that has nothing else.
        self.before_text, _, self.after_text = (self.turn(content=_CONTENT) or "").partition(_CONTENT)
        for content in ("", None):
            self._content = content
            self.one = self.turn(_call(0, dict(zip(_KEYS, _VALUES, strict=True))))
            if self.one is not None and _NAMES[0] in self.one and _VALUES[0] in self.one:
                break
        else:
            self.one = None

    def _render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
    ) -> str | None:
        try:
            return self._template.render(
                messages, tools=self._tools, add_generation_prompt=add_generation_prompt
            )
        except InvalidParameterError:
            return None

    def turn(self, *calls: dict[str, Any], content: str | None = None, thought: str = "") -> str | None:
        """Return what a turn adds to the conversation; None is a refusal."""
        message: dict[str, Any] = {"role": "assistant", "content": content or self._content}
        if calls:
            message["tool_calls"] = list(calls)
        if thought:
            message |= {"reasoning_content": thought, "reasoning": thought}
        text = self._render([_USER, message])
        if text is None:
            return None
        n = _n_shared(text, self._base)
        self.cut = text[:n]
        return text[n:]


def _call(i: int, arguments: dict[str, Any], call_id: str | None = None) -> dict[str, Any]:
    return {
        "id": call_id or _IDS[i],
        "type": "function",
        "function": {"name": _NAMES[i], "arguments": arguments},
    }


def _calls(probe: _Probe) -> CallFormat | None:
    """Derive the format of calls; None where the template shows none."""
    if probe.one is None:
        return None
    one = probe.one[_n_shared(probe.one, probe.before_text) :]
    if _NAMES[0] not in one:
        one = probe.one
    two = probe.turn(*(_call(i, dict(zip(_KEYS, _VALUES, strict=True))) for i in (0, 1)))
    parallel = two is not None and _NAMES[1] in two and two.count(_VALUES[0]) > 1
    two = two[len(probe.one) - len(one) :] if two is not None and parallel else None
    objects = [span for span in _json_spans(one) if _VALUES[0] in one[slice(*span[:2])]]
    try:
        if objects and _NAMES[0] in one[slice(*objects[0][:2])]:
            start, end, value = objects[0]
            calls = _json(one[:start], value, _rest(one[end:], probe), two)
        else:
            calls = _tag_json(probe, one, two, objects[0]) if objects else _tags(probe, one, two)
    except (ValueError, IndexError):  # the name or the arguments are not where these formats have them
        return None
    opener = calls.section_start or calls.start
    if 0 < len(opener) < N_MARKER or any(needle in repr(calls) for needle in (*_NAMES, *_KEYS, *_VALUES)):
        return None
    return replace(calls, parallel=parallel)


def _json(before: str, value: Any, after: str, two: str | None) -> CallFormat:
    call = value[0] if isinstance(value, list) else value
    if not isinstance(call, dict) or _NAMES[0] not in (*call, *call.values()):
        raise ValueError("the name is not a field of the object")
    fields: dict[str, Any] = {"name_field": "", "arguments_field": "", "id_field": ""}
    for key, item in call.items():
        if item == _NAMES[0]:
            fields["name_field"] = key
        elif item == _IDS[0]:
            fields["id_field"] = key
        elif _KEYS[0] in str(item):
            fields["arguments_field"] = "" if key == _NAMES[0] else key
    tag = _TAG.match(after)
    start = before.strip()
    shared = two is not None and bool(start) and two.count(start) == 1
    return CallFormat(
        kind=Kind.JSON,
        start=start,
        end=tag[0] if tag else after,
        fields=tuple(call) if fields["name_field"] else (),
        joined="list" if isinstance(value, list) else "lines" if shared else "",
        **fields,
    )


def _tag_json(probe: _Probe, one: str, two: str | None, span: tuple[int, int, Any]) -> CallFormat:
    name = one.index(_NAMES[0])
    head = (one[:name], one[name + len(_NAMES[0]) : span[0]])
    if two is None:
        after = _rest(one[span[1] :], probe)
        return CallFormat(kind=Kind.TAG_JSON, end=after, **_header(*_with_ids(*head)))
    second = two.index(_NAMES[1])
    spans = [bounds for bounds in _json_spans(two) if _VALUES[0] in two[slice(*bounds[:2])]]
    between, tail = two[spans[0][1] : second], two[spans[1][1] :]
    other = two[second + len(_NAMES[1]) : spans[1][0]]
    return _repeated(CallFormat(kind=Kind.TAG_JSON), (*head, other), between, tail, _rest(tail, probe))


def _tags(probe: _Probe, one: str, two: str | None) -> CallFormat:
    name, *places = _places(one, _NAMES[0], _KEYS[0], _VALUES[0], _KEYS[1], _VALUES[1])
    (key, value, second_key, second_value) = places
    to_key = one[name + len(_NAMES[0]) : key]
    to_value = one[key + len(_KEYS[0]) : value]
    to_next = one[value + len(_VALUES[0]) : second_key]
    tail = one[second_value + len(_VALUES[1]) :]
    value_end = to_next[: _n_shared(to_next, tail)].rstrip()
    if not value_end:
        raise ValueError("nothing ends a value")
    key_start = _shared_end(to_key, to_next[len(value_end) :]).strip()
    name_end = to_key[: to_key.rindex(key_start)]
    starts = (_start_of(probe, sample) for sample in (7, True, None, [1], {"a": 1}))
    calls = CallFormat(
        kind=Kind.TAGS,
        key_start=key_start,
        string_start=to_value,
        json_starts=tuple(
            dict.fromkeys(start for start in starts if start is not None and start != to_value)
        ),
        value_end=value_end,
        cdata="<![CDATA[" in probe.source,
        python="['x']" in (probe.turn(_call(0, {_KEYS[0]: ["x"], _KEYS[1]: _VALUES[1]})) or ""),
    )
    after = _rest(tail, probe)
    if two is None:
        return replace(
            calls, end=after[len(value_end) :].strip(), **_header(*_with_ids(one[:name], name_end))
        )
    last = _places(two, _NAMES[0], _KEYS[0], _VALUES[0], _KEYS[1], _VALUES[1])[-1] + len(_VALUES[1])
    second = two.index(_NAMES[1], last)
    other = two[second + len(_NAMES[1]) : two.index(_KEYS[0], second)]
    other = other[: other.rindex(key_start)]
    calls = _repeated(calls, (one[:name], name_end, other), two[last:second], tail, after)
    return replace(calls, end=calls.end[len(value_end.strip()) :].strip())


def _start_of(probe: _Probe, value: object) -> str | None:
    """Return what stands between a key and a value that is no string."""
    turn = probe.turn(_call(0, {_KEYS[0]: value, _KEYS[1]: _VALUES[1]}))
    if turn is None or _KEYS[1] not in turn:
        return None
    key = turn.index(_KEYS[0], turn.index(_NAMES[0])) + len(_KEYS[0])
    text = next((text for text in (json.dumps(value), str(value)) if text in turn[key:]), None)
    if text is None:
        return None
    return turn[key : _first(turn, key, text)]


def _first(turn: str, key: int, text: str) -> int:
    """Find a value behind its key, but not inside the markup between the two."""
    at = key
    while (tag := _TAG.search(turn, at)) is not None and turn.find(text, at) > tag.start():
        at = tag.end()
    bracket = turn.find(">", key, key + 80)
    index = turn.find(text, at)
    return turn.index(text, bracket) if key <= index < bracket and text in turn[bracket:] else index


def _repeated(
    calls: CallFormat, head: tuple[str, str, str], between: str, tail: str, after: str
) -> CallFormat:
    """Part what each call has from what all share; `head` is around the first name and behind the second."""
    ends = between[: _n_shared(between, tail)]
    before, to_arguments, other = head
    (before, to_arguments), (rest, other) = (
        _with_ids(before, to_arguments),
        _with_ids(between[len(ends) :], other),
    )
    call_start = _shared_end(before, rest)
    to_arguments = _with_index(to_arguments, other)
    left = after.removeprefix(ends.strip()).strip()
    section = before[: len(before) - len(call_start)].strip()
    tag = _TAG.match(left)
    return replace(
        calls,
        section_start=section,
        section_end=(tag[0] if tag and not left.startswith("<|close|>") else left) if section else "",
        end=ends.strip(),
        **_header(call_start, to_arguments),
    )


def _header(before: str, behind: str) -> dict[str, Any]:
    """Split what stands around a name into the literal before all fields, the fields and the one behind."""
    first, id_mark, before_name = before.partition(ID)
    naming = "(?P<name>.+?)"
    if id_mark:
        naming = f"(?:(?P<id>.+?){re.escape(before_name)})?" + naming
    fields = re.split(f"([{ID}{NUMBER}])", behind)
    for literal, mark in zip(fields[:-1:2], fields[1::2], strict=True):
        naming += f"(?:{re.escape(literal)}" + (r"(?P<id>.+?))?" if mark == ID else r"\d+)?")
    return {"start": first.strip(), "naming": naming, "name_end": fields[-1].strip()}


def _with_ids(*texts: str) -> tuple[str, ...]:
    for call_id in _IDS:
        texts = tuple(text.replace(call_id, ID) for text in texts)
    return texts


def _with_index(one: str, other: str) -> str:
    """Mark the number that counts calls."""
    for match in re.finditer(r"\d+", one):
        number = str(int(match[0]) + 1)
        if one[: match.start()] + number + one[match.end() :] == other:
            return one[: match.start()] + NUMBER + one[match.end() :]
    return one


def _around(probe: _Probe, calls: CallFormat) -> Format:
    """Derive reasoning, what stands around content, and the ends of turns."""
    before, after = probe.before_text, probe.after_text
    content_start = "" if probe.prompt.endswith(before) else before[_n_shared(before, probe.prompt) :]
    start, end = _reasoning(probe, content_start)
    if end and end in content_start:
        content_start = content_start.rpartition(end)[2]
    last = calls.section_end or calls.end
    call_tail = (probe.one or "").rpartition(_VALUES[1])[2].partition(last)[2] if last else ""
    shared = _shared_end(after, call_tail).strip() if call_tail else after.strip()
    content_end = after.strip().removesuffix(shared).strip() if shared and call_tail else ""
    content_end = content_end if _TAG.fullmatch(content_end) else ""
    tags = "<[>]|:"
    return Format(
        calls=calls,
        reasoning_start=start,
        reasoning_end=end,
        padded=bool(content_start) and content_start.isspace(),
        content_start=content_start.strip() if any(mark in content_start for mark in tags) else "",
        content_end=content_end,
        turn_end=after[after.rindex(shared) :] if shared else after,
        call_turn_end=call_tail or after,
    )


def _reasoning(probe: _Probe, content_start: str) -> tuple[str, str]:
    call = _call(0, dict(zip(_KEYS, _VALUES, strict=True)))
    for calls, content, then in (
        ((), _CONTENT, _CONTENT),
        ((call,), _CONTENT, _CONTENT),
        ((call,), None, _NAMES[0]),
    ):
        turn = probe.turn(*calls, content=content, thought=_THOUGHT)
        if turn is None or _THOUGHT not in turn or then not in turn.partition(_THOUGHT)[2]:
            continue
        before, _, rest = turn.partition(_THOUGHT)
        start = before[_n_shared(before, probe.before_text) :].strip()
        tags = [tag for tag in _TAG.findall(probe.cut + before) if (probe.cut + before).strip().endswith(tag)]
        prompted = probe.prompt[_n_shared(probe.prompt, probe.before_text) :].strip()
        start = start or prompted or (tags[-1] if tags else "")
        between = rest.partition(then)[0].strip()
        mirrored = re.sub(r"^([<\[])", r"\1/", start)
        if start and mirrored in between:
            return start, between[: between.index(mirrored) + len(mirrored)]
        if then != _CONTENT:
            tag = _TAG.match(between)
            return start, tag[0] if tag else between
        marker = content_start.strip()
        return start, between.removesuffix(marker) if marker != between else between
    for start, end in THINKING:
        if (start in probe.source and end in probe.source) or start in probe.prompt:
            return start, end
    return "", ""


def _rest(tail: str, probe: _Probe) -> str:
    """Return what of a turn's tail is not what any turn ends with."""
    shared = _shared_end(tail, probe.after_text)
    return tail[: len(tail) - len(shared)].strip() if shared.strip() else tail.strip()


def _n_alike(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _n_shared(one: str, other: str) -> int:
    """Count the characters that two texts begin with alike, without the half of a tag."""
    n = _n_alike(one, other)
    for opening, closing in ("<>", "[]"):
        start = one.rfind(opening, 0, n)
        closed = one.find(closing, start) if start >= 0 else -1
        if start >= 0 and (closed < 0 or n <= closed < n + 60):
            n = start
    return n


def _shared_end(one: str, other: str) -> str:
    """Return what two texts end with alike, without the half of a tag."""
    shared = one[len(one) - _n_alike(one[::-1], other[::-1]) :]
    if len(shared) == len(one) or len(shared) == len(other):
        return shared
    head = one[: len(one) - len(shared)]
    for opening, closing in ("<>", "[]"):
        if head.rfind(opening) > head.rfind(closing) and closing in shared:
            shared = shared[shared.index(closing) + 1 :]
            head = one[: len(one) - len(shared)]
    return shared


def _json_spans(text: str) -> list[tuple[int, int, Any]]:
    decoder, spans, at = json.JSONDecoder(), list[tuple[int, int, Any]](), 0
    while (match := re.compile(r"[\[{]").search(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, match.start())
        except ValueError:
            at = match.end()
        else:
            spans.append((match.start(), at, value))
    return spans


def _places(text: str, *needles: str) -> list[int]:
    """Find texts one behind the other. Raises ValueError."""
    places, at = [], 0
    for needle in needles:
        at = text.index(needle, at)
        places.append(at)
        at += len(needle)
    return places
