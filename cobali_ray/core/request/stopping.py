"""Text out of tokens' bytes, stop strings across deltas, the search for any string, and how a text begins."""

from __future__ import annotations

import codecs

_decoder_of = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """An incremental UTF-8 decoder: incomplete characters wait, broken ones become U+FFFD."""

    __slots__ = ("_decoder", "waiting")

    def __init__(self) -> None:
        self._decoder = _decoder_of("replace")
        self.waiting = False
        """Whether part of a character was fed."""

    def feed(self, piece: bytes) -> str:
        """Add one token's bytes and return the text that is now complete."""
        if not self.waiting and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self.waiting = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Return what is left, an incomplete character as U+FFFD."""
        self.waiting = False
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Lets text through until a stop string appears; a possible beginning of one is held back.

    The stop string itself is shown only if `include` says so. Where several match, the one that begins first
    ends the text, the shortest of those.
    """

    __slots__ = ("_held", "_include", "_searches", "match")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._include = include
        self._searches = [Search(stop) for stop in stops]
        self._held = ""
        self.match: str | None = None
        """The stop string that ended the text."""

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text; return what may be shown and whether a stop string ended it."""
        if not self._searches:
            return text, False
        ends = [(search.feed(text), len(search.stop)) for search in self._searches]
        matches = [(len(self._held) + end - length, length) for end, length in ends if end]
        text = self._held + text
        if matches:
            self._held = ""
            begin, length = min(matches)
            self.match = text[begin : begin + length]
            return text[: begin + length if self._include else begin], True
        cut = len(text) - max(search.n_matched for search in self._searches)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """Return what was held back: the answer ended otherwise, so it was no stop string."""
        held, self._held = self._held, ""
        return held


class Search:
    """Looks for one string in text that comes in pieces, each character once.

    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977.
    """

    __slots__ = ("_fallbacks", "n_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.n_matched = 0
        """Length of the longest beginning of `stop` that the text so far ends with."""
        self._fallbacks = [0] * len(stop)
        for i in range(1, len(stop)):
            self._fallbacks[i] = self._step(self._fallbacks[i - 1], stop[i])

    def _step(self, n: int, char: str) -> int:
        while n and self.stop[n] != char:
            n = self._fallbacks[n - 1]
        return n + 1 if self.stop[n] == char else 0

    def feed(self, text: str) -> int:
        """Return how many characters of `text` complete the string; 0 if they do not.

        The next text is what follows those, or the whole one.
        """
        n, length = self.n_matched, len(self.stop)
        if n == 0 and self.stop[0] not in text:  # what nearly all text is like
            return 0
        for i, char in enumerate(text, 1):
            n = self._step(n, char)
            if n == length:
                self.n_matched = self._fallbacks[n - 1]
                return i
        self.n_matched = n
        return 0

    def ends(self, text: str) -> list[int]:
        """Return every place in `text` at which the string is complete."""
        places, at = [], 0
        while n := self.feed(text[at:]):
            at += n
            places.append(at)
        return places


class Beginning:
    """Tells whether a text begins with one of some heads, as soon as that is clear.

    White space counts only between quotes; heads have none elsewhere.
    """

    __slots__ = ("_heads", "_quoted", "_seen")

    def __init__(self, heads: tuple[str, ...]) -> None:
        self._heads, self._seen, self._quoted = heads, "", False

    def feed(self, text: str) -> bool | None:
        """Take further text. None: it is not clear yet."""
        for char in text:
            self._quoted ^= char == '"'
            if not self._quoted and char.isspace():
                continue
            self._seen += char
            self._heads = tuple(head for head in self._heads if head.startswith(self._seen))
            if self._seen in self._heads:
                return True
            if not self._heads:
                return False
        return None


def chars(data: bytes) -> str:
    """Return bytes as a text of one character each, to search in."""
    return data.decode("latin-1")
