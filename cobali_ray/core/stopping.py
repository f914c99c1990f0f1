"""Stop strings across deltas."""

from __future__ import annotations


class StopScanner:
    """Lets text through until a stop string appears; a possible beginning of one is held back.

    The stop string itself is never shown. Where several match, the one that begins first ends the text.
    """

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text; return what may be shown and whether a stop string ended it."""
        if not self._stops:
            return text, False
        text = self._held + text
        hits = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self._held = ""
            return text[: min(hits)], True
        n_held = max(_overlap(text, stop) for stop in self._stops)
        cut = len(text) - n_held
        self._held = text[cut:]
        return text[:cut], False

    @property
    def holds(self) -> bool:
        """Whether text is being held back."""
        return bool(self._held)

    def flush(self) -> str:
        """Return what was held back: the answer ended otherwise, so it was no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of `stop` that `text` ends with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
