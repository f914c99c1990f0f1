"""Which part of a JSON schema is to blame that llguidance refuses it: found by leaving parts out. Pure.

Its messages say what is wrong and mostly not where. So parts are left out for as long as it says the same
of what remains, half of them at a time: a place in a large schema costs some twenty smaller compilations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

N_TRIES = 96
"""Compilations for one schema that is refused."""
N_CHARS = 1_000_000
"""Of all that is compiled for it, which takes half a second."""

_KEPT = frozenset({"$schema", "$id", "id", "$defs", "definitions"})
"""Keys of a whole schema without which the rest means something else."""

Path: TypeAlias = tuple[str | int, ...]


def place_of(schema: Any, refusal: Callable[[str], str]) -> str:
    """Return the smallest part that was found to be refused alone, as a JSON pointer that begins with `#`.

    Where no single key of that part is to blame, the keys that are so together follow it. `refusal` returns
    what is wrong with the text of a schema, or "".
    """
    return _Search(schema, refusal).place()


class _Search:
    def __init__(self, schema: Any, refusal: Callable[[str], str]) -> None:
        self._refusal, self._left = refusal, schema
        """`_left` is what remains of the schema. It is refused in the same words."""
        self._n_tries, self._n_chars = N_TRIES, N_CHARS
        self._words = _first_line(refusal(json.dumps(schema)))

    def place(self) -> str:
        path: Path = ()
        left: Path = ()
        """The same place in what remains: elements of lists have moved up there."""
        seen: set[Path] = set()
        while True:
            node = _at(self._left, left)
            if not isinstance(node, dict | list) or not node:
                target = _target(node) if left and left[-1] == "$ref" else None
                if target is None or target in seen or not isinstance(_at(self._left, target), dict):
                    return _pointer(path)
                seen.add(target)
                path = left = target
                continue
            if left and self._try(_with(self._left, left, type(node)())):
                return _pointer(path)
            kept = [key for key in node if key in _KEPT] if isinstance(node, dict) and not left else []
            parts: list[Any] = [part for part in _parts_of(node) if part not in kept]
            found = self._narrowed(left, node, parts, kept)
            if len(found) != 1 and self._spent:
                return _pointer(path)
            if len(found) != 1:
                together = ", ".join(map(str, found)) if isinstance(node, dict) else ""
                return _pointer(path) + (f" ({together})" if together else "")
            path = (*path, found[0])
            left = (*left, found[0] if isinstance(node, dict) else 0)

    def _narrowed(self, left: Path, node: Any, parts: list[Any], kept: list[Any]) -> list[Any]:
        """Leave out of a node what need not be there, and return what must."""

        def try_with(some: Sequence[Any]) -> bool:
            return self._try(_with(self._left, left, _only(node, [*kept, *some])))

        if kept and try_with([]):
            return self._narrowed(left, node, kept, [])
        while len(parts) > 1:
            half = len(parts) // 2
            if try_with(parts[:half]):
                parts = parts[:half]
            elif try_with(parts[half:]):
                parts = parts[half:]
            else:
                break
        else:
            if not kept or try_with(parts):
                return parts
        for part in list(parts):
            without = [one for one in parts if one != part]
            if without and try_with(without):
                parts = without
        return parts

    @property
    def _spent(self) -> bool:
        return self._n_tries < 0 or self._n_chars < 0

    def _try(self, schema: Any) -> bool:
        """Go on with this instead, if it is refused in the same words and may still be tried."""
        schema = _without_unused(schema)
        text = json.dumps(schema)
        self._n_tries -= 1
        self._n_chars -= len(text)
        if self._spent or _first_line(self._refusal(text)) != self._words:
            return False
        self._left = schema
        return True


def _first_line(message: str) -> str:
    """Return a message without the references behind which it found its reason."""
    return message.partition("\n  while processing")[0]


def _without_unused(schema: Any) -> Any:
    """Return a schema without definitions that nothing in it names."""
    for key in ("$defs", "definitions"):
        if isinstance(schema, dict) and isinstance(defined := schema.get(key), dict):
            used, rest = dict[str, Any](), {name: value for name, value in schema.items() if name != key}
            new = {"": rest}
            while new:
                text = json.dumps(list(new.values()))
                used |= new
                new = {
                    name: value
                    for name, value in defined.items()
                    if name not in used and json.dumps(name)[1:-1] in text
                }
            schema = rest | {key: {name: value for name, value in defined.items() if name in used}}
    return schema


def _parts_of(node: dict[str, Any] | list[Any]) -> list[Any]:
    return list(node) if isinstance(node, dict) else list(range(len(node)))


def _only(node: Any, parts: Sequence[Any]) -> Any:
    if isinstance(node, dict):
        return {key: value for key, value in node.items() if key in parts}
    return [node[i] for i in parts]


def _at(node: Any, path: Path) -> Any:
    """Return the node at this path, None where it leads nowhere."""
    for step in path:
        if isinstance(node, list) and isinstance(step, int):
            node = node[step]
        else:
            node = node.get(step) if isinstance(node, dict) else None
    return node


def _with(schema: Any, path: Path, node: Any) -> Any:
    """Return the schema with another node at this path."""
    if not path:
        return node
    copy = schema.copy()
    copy[path[0]] = _with(schema[path[0]], path[1:], node)
    return copy


def _target(ref: Any) -> Path | None:
    """Return where a reference within the schema leads."""
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in ref[2:].split("/"))


def _pointer(path: Path) -> str:
    return "/".join(("#", *(str(step).replace("~", "~0").replace("/", "~1") for step in path)))
