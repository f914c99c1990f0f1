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
    words, n_tries, n_chars = _first_line(refusal(json.dumps(schema))), N_TRIES, N_CHARS

    def kept_to(node: Any, *parts: Any) -> bool:
        """Go on with these parts of the node alone, if that is refused in the same words."""
        nonlocal schema, n_tries, n_chars
        smaller = _with(schema, left, _only(node, parts))
        text = json.dumps(smaller)
        n_tries, n_chars = n_tries - 1, n_chars - len(text)
        if min(n_tries, n_chars) < 0 or _first_line(refusal(text)) != words:
            return False
        schema = smaller
        return True

    path: Path = ()
    left: Path = ()
    """The same place in what remains: elements of lists have moved up there."""
    seen: set[Path] = set()
    while True:
        node = _at(schema, left)
        if not isinstance(node, dict | list) or not node:
            target = _target(node) if left[-1:] == ("$ref",) else None
            if target is None or target in seen or not isinstance(_at(schema, target), dict):
                return _pointer(path)
            seen.add(target)
            path = left = target
            continue
        if left and kept_to(node):
            return _pointer(path)
        parts: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        kept = [part for part in parts if part in _KEPT] if not left else []
        if kept and kept_to(node, *kept):
            kept, parts = [], kept
        parts = [part for part in parts if part not in kept]
        while len(parts) > 1:
            half = len(parts) // 2
            halves = (parts[:half], parts[half:])
            if not (some := next((p for p in halves if kept_to(node, *kept, *p)), None)):
                break
            parts = some
        for part in list(parts) if len(parts) > 1 else ():
            if kept_to(node, *kept, *(without := [other for other in parts if other != part])):
                parts = without
        if len(parts) > 1:
            together = isinstance(node, dict) and min(n_tries, n_chars) >= 0
            return _pointer(path) + (f" ({', '.join(parts)})" if together else "")
        if not parts:
            return _pointer(path)
        path = (*path, parts[0])
        left = (*left, parts[0] if isinstance(node, dict) else 0)


def _first_line(message: str) -> str:
    """Return a message without the references that led llguidance to its reason."""
    return message.partition("\n  while processing")[0]


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
