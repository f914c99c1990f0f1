"""The input of a body -> the messages of a chat. Pure.

A turn of the model is several items here and one message there: what it reasoned, what it said, its calls.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cobali_ray.api.body.fields import judge
from cobali_ray.api.body.reading import MISSING, ShapeT, check_choice, model_of
from cobali_ray.api.body.schema import MAX_CALLS
from cobali_ray.api.responses.schema import ROLES, CallItem, MessageItem, OutputItem, ReasoningItem
from cobali_ray.api.responses.tools import custom_arguments, sent_name
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError

NEUTRAL: Final = frozenset({"caller", "created_by", "parsed_arguments", "phase"})
"""Fields of items by which no answer differs."""
REFERENCE: Final = "item_reference"
SYSTEM = ("system", "developer")
TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts that are text, and where they have it."""


class InputMessages(NamedTuple):
    messages: list[dict[str, Any]]
    places: list[Path]
    """Where in the body the content of each of them stands."""
    ignored: tuple[str, ...]


class EarlierItems(NamedTuple):
    """The items that the input goes on from."""

    field: str = ""
    """The field of the body that names it."""
    items: Sequence[dict[str, Any]] = ()


def read_input(
    items: str | Sequence[dict[str, Any]],
    instructions: str | None,
    *,
    strict: bool,
    field: str = "input",
    earlier: EarlierItems = EarlierItems(),  # noqa: B008 it never changes
) -> InputMessages:
    """Return the messages for items in this field, after the earlier ones.

    Raises InvalidParameterError and UnsupportedParameterError.
    """
    chat = _Chat()
    if instructions is not None:
        chat.add({"role": "system", "content": instructions}, ("instructions",))
    for raw in earlier.items:
        where: Path = (earlier.field,)
        chat.take(_item(raw, where), where)
    if isinstance(items, str):
        chat.add({"role": "user", "content": items}, (field,))
        items = ()
    ignored: dict[str, None] = {}
    for index, raw in enumerate(items):
        where = (field, index)
        item = _item(raw, where)
        extra = item.model_extra
        ignored |= dict.fromkeys(
            judge(extra, NEUTRAL, {}, where=where, named_as=f"{field}[].", strict=strict)
        )
        chat.take(item, where)
    chat.end_turn()
    return InputMessages(chat.messages, chat.places, tuple(ignored))


ID_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def references(items: str | Sequence[dict[str, Any]]) -> list[str]:
    """Return the ids of items that an input only references."""
    if isinstance(items, str):
        return []
    return [str(item.get("id")) for item in items if _is_reference(item)]


def _is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == REFERENCE or (item.get("type") is None and item.keys() <= {"id", "type"})


def resolved(
    items: str | Sequence[dict[str, Any]], referenced: Mapping[str, dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """Return an input with those items in place of the references. Raises InvalidParameterError."""
    return (
        items if isinstance(items, str) else [_resolved(item, i, referenced) for i, item in enumerate(items)]
    )


def _resolved(item: dict[str, Any], index: int, referenced: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    if not _is_reference(item):
        return item
    if (stored := referenced.get(str(item.get("id")))) is None:
        problem = f": there is no item with the id {str(item.get('id'))[:64]!r}"
        raise InvalidParameterError(("input", index, "id"), problem)
    return stored


def with_ids(items: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an input that was read as the items that are kept of it, each with an id of its own."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return [_with_id(item) for item in items]


def _with_id(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    defaults = {"type": kind, "status": "completed"}
    given = {name: value for name, value in item.items() if value is not None or name not in defaults}
    kept = defaults | given | {"id": f"{ID_PREFIXES[kind]}_{uuid.uuid4().hex}"}
    if kind == "message" and isinstance(text := item["content"], str):
        part: dict[str, Any] = {"type": "input_text", "text": text}
        if item["role"] == "assistant":
            part = {"type": "output_text", "text": text, "annotations": []}
        kept["content"] = [part]
    return kept


Item = MessageItem | CallItem | OutputItem | ReasoningItem


def _item(raw: dict[str, Any], where: Path) -> Item:
    match raw.get("type"):
        case None | "message":
            return model_of(MessageItem, raw, where)
        case "function_call":
            return _with(model_of(CallItem, raw, where), "arguments", where)
        case "custom_tool_call":
            return _with(model_of(CallItem, raw, where), "input", where)
        case "function_call_output" | "custom_tool_call_output":
            return model_of(OutputItem, raw, where)
        case "reasoning":
            return model_of(ReasoningItem, raw, where)
        case kind:
            pass
    why = "send the item itself" if kind == REFERENCE else f"only {', '.join(ID_PREFIXES)}"
    raise UnsupportedParameterError(
        (*where, "type"), where, f": items of type {str(kind)[:32]!r} are not supported, {why}"
    )


def _with(item: ShapeT, name: str, where: Path) -> ShapeT:
    if getattr(item, name) is None:
        raise InvalidParameterError((*where, name), MISSING)
    return item


class _Chat:
    """Messages as they are put together."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[Path] = []
        self._turn: dict[str, Any] | None = None
        """The model's turn that further items may belong to."""

    def add(self, message: dict[str, Any], place: Path) -> None:
        self.end_turn()
        last = self.messages[-1] if len(self.messages) == 1 else None
        if last and last["role"] in SYSTEM and message["role"] in SYSTEM:
            # Most templates have room for one, in front.
            texts = [last["content"], message["content"]]
            if all(isinstance(text, str) for text in texts):
                last["content"] = "\n\n".join(texts)
                return
        self.messages.append(message)
        self.places.append(place)

    def take(self, item: Item, where: Path) -> None:
        match item:
            case ReasoningItem():
                self._think(_reasoning(item, where), where)
            case CallItem():
                self._call(item, where)
            case OutputItem():
                content = _parts(item.output, (*where, "output"))
                result = {"role": "tool", "tool_call_id": item.call_id, "content": content}
                self.add(result, (*where, "output"))
            case MessageItem(role="assistant"):
                self._say(_text(item.content, (*where, "content")), where)
            case MessageItem():
                check_choice((*where, "role"), item.role, ROLES)
                read = _text if item.role in SYSTEM else _parts
                content = read(item.content, (*where, "content"))
                self.add({"role": item.role, "content": content}, (*where, "content"))

    def end_turn(self) -> None:
        """Let no further item belong to the last turn."""
        if self._turn is not None and self._turn.keys() == {"role"}:
            self.messages.pop()  # reasoning that only others can read
            self.places.pop()
        self._turn = None

    def _open(self, where: Path, *fields: str) -> dict[str, Any]:
        """Return the turn that an item belongs to: a new one, if the last has one of `fields` already."""
        if self._turn is None or self._turn.keys() & set(fields):
            self.end_turn()
            self._turn = {"role": "assistant"}
            self.messages.append(self._turn)
            self.places.append((*where, "content"))
        return self._turn

    def _think(self, text: str, where: Path) -> None:
        turn = self._open(where, "content", "tool_calls")
        if text:
            before = turn.get("reasoning_content")
            turn["reasoning_content"] = f"{before}\n{text}" if before else text

    def _say(self, text: str, where: Path) -> None:
        self._open(where, "content", "tool_calls")["content"] = text

    def _call(self, item: CallItem, where: Path) -> None:
        calls = self._open(where).setdefault("tool_calls", [])
        if len(calls) == MAX_CALLS:
            raise InvalidParameterError(where, f": a turn has at most {MAX_CALLS} calls")
        arguments = item.arguments if item.type == "function_call" else custom_arguments(item.input or "")
        function = {"name": sent_name(item.name, item.namespace), "arguments": arguments}
        calls.append({"id": item.call_id, "type": "function", "function": function})


def _reasoning(item: ReasoningItem, where: Path) -> str:
    """Return the reasoning, or where that is not given, its summary."""
    for name, parts in (("content", item.content), ("summary", item.summary)):
        if parts:
            return "\n".join(_strings(parts, (*where, name)))
    return ""


def _strings(parts: Iterable[dict[str, Any]], where: Path) -> Iterable[str]:
    for index, part in enumerate(parts):
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidParameterError((*where, index, "text"), "must be a string")
        yield text


def _text(content: str | list[dict[str, Any]] | None, where: Path) -> str:
    """Return the text of a content that can be nothing else."""
    parts = _parts(content, where)
    if isinstance(parts, str):
        return parts
    for index, part in enumerate(parts):
        if part["type"] != "text":
            raise UnsupportedParameterError(
                (*where, index, "type"), (*where, index), ": only text is supported here"
            )
    return "\n".join(part["text"] for part in parts)


def _parts(content: str | list[dict[str, Any]] | None, where: Path) -> str | list[dict[str, Any]]:
    """Return a content as a chat has it; whether the model can read its parts is checked there."""
    if content is None:
        raise InvalidParameterError(where, "must not be null")
    if isinstance(content, str):
        return content
    return [_part(part, (*where, index)) for index, part in enumerate(content)]


def _part(part: dict[str, Any], where: Path) -> dict[str, Any]:
    kind = part.get("type")
    if isinstance(kind, str) and (name := TEXTS.get(kind)) is not None:
        if not isinstance(part.get(name), str):
            raise InvalidParameterError((*where, name), "must be a string")
        return {"type": "text", "text": part[name]}
    if kind == "input_image" and isinstance(url := part.get("image_url"), str):
        image = {"url": url, "detail": part.get("detail")}
        return {"type": "image_url", "image_url": {key: value for key, value in image.items() if value}}
    raise UnsupportedParameterError(
        (*where, "type"), where, f": parts of type {str(kind)[:32]!r} are not supported"
    )
