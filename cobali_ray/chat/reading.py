"""Reader: text that is still being written, read by coroutines that wait for more of it.

A reading is a generator: it yields when it needs more text than there is. What it takes does not depend on
how the text was cut into pieces.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Sequence

MAX_DEPTH = 60
"""How deep values may be nested."""
MAX_WORD = 300
"""Characters of a number, and of what is looked at ahead."""

Reading = Generator[None]
"""Reads on until it needs more text than there is."""
Sink = Callable[[str], None]


class BrokenError(Exception):
    """What is being read is not what it seemed to be."""


class Reader:
    """Text and a place in it. `quote` is what strings stand in, instead of quotes and escapes."""

    def __init__(self, text: str = "", *, quote: str = "", ended: bool = False) -> None:
        self._text, self._at, self._ended = text, 0, ended
        self._quote = quote
        self._raw: list[str] | None = None
        """Text taken since it began to be kept; None while it is not."""

    # Values: JSON, and what models write in its place

    def _value(self, sink: Sink, *, key: bool = False, loose: bool = False, depth: int = 0) -> Reading:
        """Read one value, JSON or Python, and pass it on as JSON while it comes."""
        char = yield from self._skip("")
        quote = self._quote
        if quote and (yield from self._accept(quote, spaces=False)):
            sink('"')
            if not (yield from self._until([quote], lambda text: sink(escaped(text)))):
                raise BrokenError
            sink('"')
        elif char in ("'", '"') and char:
            yield from self._quoted(sink, loose=loose)
        elif key:
            if not quote:
                raise BrokenError
            parts: list[str] = []
            if not (yield from self._until([":"], parts.append)):
                raise BrokenError
            self._give_back(":")
            sink(json.dumps("".join(parts).strip(), ensure_ascii=False))
        elif char in ("{", "["):
            yield from self._container(sink, char, depth)
        else:
            yield from self._literal(sink)

    def _container(self, sink: Sink, opening: str, depth: int) -> Reading:
        if depth >= MAX_DEPTH:
            raise BrokenError
        closing = "}" if opening == "{" else "]"
        self._take(1)
        sink(opening)
        first = True
        while (char := (yield from self._skip(""))) != closing:
            if not first:
                if char != ",":
                    raise BrokenError
                self._take(1)
                if (yield from self._skip("")) == closing:
                    break
                sink(", ")
            first = False
            if opening == "{":
                yield from self._value(sink, key=True)
                yield from self._colon()
                sink(": ")
            yield from self._value(sink, depth=depth + 1)
        self._take(1)
        sink(closing)

    def _colon(self) -> Reading:
        if (yield from self._skip("")) != ":":
            raise BrokenError
        self._take(1)

    def _literal(self, sink: Sink) -> Reading:
        parts: list[str] = []
        while (char := (yield from self._peek())) and (char.isalnum() or char in "+-._"):
            parts.append(self._take(1))
            if len(parts) > MAX_WORD:
                raise BrokenError
        word = "".join(parts)
        word = _WORDS.get(word, word)
        if not _LITERAL.fullmatch(word):
            raise BrokenError
        sink(word)

    def _quoted(self, sink: Sink, *, loose: bool) -> Reading:
        """Read a string in either quotes with either language's escapes.

        A loose one may hold its own quote unescaped: it ends where what follows goes on with the call.
        """
        quote = self._take(1)
        sink('"')
        while True:
            marker = yield from self._until([quote, "\\"], lambda text: sink(escaped(text)))
            if not marker:
                raise BrokenError
            if marker == "\\":
                yield from self._escape(sink)
            elif loose and not (yield from self._is_argument_end()):
                sink(escaped(quote))
            else:
                break
        sink('"')

    def _is_argument_end(self) -> Generator[None, None, bool]:
        """Tell whether an argument ends here, without taking anything."""
        while True:
            ahead = self._text[self._at : self._at + MAX_WORD]
            if _ARGUMENT_END.match(ahead):
                return True
            if self._ended or len(ahead) == MAX_WORD or not _ARGUMENT_END_BEGUN.fullmatch(ahead):
                return False
            yield

    def _escape(self, sink: Sink) -> Reading:
        char = yield from self._peek()
        if not char:
            raise BrokenError
        self._take(1)
        n_digits = {"u": 4, "x": 2, "U": 8}.get(char, 0)
        digits = ""
        while len(digits) < n_digits:
            digit = yield from self._peek()
            if digit not in _HEX or not digit:
                break
            digits += self._take(1)
        if n_digits and len(digits) == n_digits:
            if char == "u":
                sink("\\u" + digits)
            elif (code := int(digits, 16)) > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise BrokenError
            else:
                sink(escaped(chr(code)))
        elif char == "'":
            sink("'")
        elif char in '"\\/bfnrt':
            sink("\\" + char)
        else:
            sink(escaped("\\" + char + digits))

    def read_whole(self, sink: Sink) -> None:
        """Read a text that is all there as one value. Raises BrokenError."""
        for _ in self._value(sink):
            raise AssertionError("an ended text waits for nothing")
        if self._at < len(self._text):
            raise BrokenError

    # The text that is there

    def _take(self, n: int) -> str:
        text = self._text[self._at : self._at + n]
        self._at += n
        if self._raw is not None:
            self._raw.append(text)
        return text

    def _give_back(self, marker: str) -> None:
        """Undo the last `_take`, of a marker."""
        self._at -= len(marker)
        if self._raw:
            self._raw.pop()

    def _peek(self) -> Generator[None, None, str]:
        """Return the next character, or "" at the end."""
        while self._at >= len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def _skip(self, also: str) -> Generator[None, None, str]:
        """Pass white space and these characters, and return the next one without taking it."""
        while (char := (yield from self._peek())) and (char.isspace() or char in also):
            self._take(1)
        return char

    def _accept(self, *markers: str, spaces: bool = True) -> Generator[None, None, str]:
        """Take the longest of these markers that comes next, and white space before it; "" if none does."""
        space = 0
        while True:
            if spaces:
                while self._text[self._at + space : self._at + space + 1].isspace():
                    space += 1
            ahead = self._text[self._at + space :]
            open_ones = [m for m in markers if len(m) > len(ahead) and m.startswith(ahead)]
            if not open_ones or self._ended:
                break
            yield
        marker = max((m for m in markers if ahead.startswith(m)), key=len, default="")
        if marker:
            self._take(space)
            self._take(len(marker))
        return marker

    def _until(
        self, markers: Collection[str], sink: Sink, *, limit: int | None = None
    ) -> Generator[None, None, str]:
        """Pass on all text before the first of these markers, take that one and return it; "" at the end.

        Raises BrokenError where more than `limit` characters stand before it.
        """
        pattern = re.compile(
            "|".join(re.escape(m) for m in sorted(markers, key=len, reverse=True)) or r"(?!)"
        )
        ordered, n_longest = sorted(markers), max(map(len, markers), default=0)
        while True:
            match = pattern.search(self._text, self._at)
            held = len(self._text) if self._ended else self._held(ordered, n_longest)
            if match is not None and match.start() >= held:
                match = None  # a longer marker may begin here or before
            n = (held if match is None else match.start()) - self._at
            if limit is not None and n > limit:
                self._take(limit)
                raise BrokenError
            if n:
                sink(self._take(n))
                limit = None if limit is None else limit - n
            if match is not None:
                return self._take(len(match[0]))
            if self._ended:
                return ""
            yield

    def _held(self, ordered: Sequence[str], n_longest: int) -> int:
        """Return where the first marker may begin of which only a part is there; they are in order."""
        end = len(self._text)
        for start in range(max(self._at, end - n_longest + 1), end):
            tail = self._text[start:]
            i = bisect_right(ordered, tail)  # what begins with this, and goes on, comes next
            if i < len(ordered) and ordered[i].startswith(tail):
                return start
        return end


_HEX = "0123456789abcdefABCDEF"
_WORDS = {"True": "true", "False": "false", "None": "null"}
_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_ARGUMENT_END = re.compile(r"\s*(?:,\s*\w+\s*=|\)\s*(?:,\s*\w|\]))")
_ARGUMENT_END_BEGUN = re.compile(r"\s*(?:,\s*(?:\w+\s*)?|\)\s*(?:,\s*)?)?")


def escaped(text: str) -> str:
    """Return the text as it stands inside the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(text: str) -> str | None:
    """Return the JSON of one value that is JSON or Python; None where it is neither."""
    reader, parts = Reader(text.strip(), ended=True), list[str]()
    try:
        reader.read_whole(parts.append)
    except BrokenError:
        return None
    return "".join(parts)
