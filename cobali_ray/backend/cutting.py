"""Where a long text may be cut so that its parts have the tokens of the whole. Pure.

llama.cpp looks for special tokens in the whole text and keeps what it finds in a list that it walks anew for
each of them, so its time grows with the square of their number: 60,000 in 600 kB take nine seconds. Between
special tokens nothing is shared, so a text that is cut in front of one can be tokenised part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MOST_PER_PART = 512
"""Special tokens of one part: few enough for their square to be nothing, many enough for few calls."""


def find_specials(text: bytes, specials: Sequence[bytes], n_most: int | None = None) -> list[int]:
    """Return where llama.cpp finds special tokens, in order: none of them overlap.

    `specials` has the longest first. Each takes, from the left, every place that no longer one has taken.
    Stops, with no order, once there are more than `n_most`.
    """
    places: list[int] = []
    for special in specials:
        at = text.find(special)
        if at < 0:
            continue
        while at >= 0:
            places.append(at)
            if n_most is not None and len(places) > n_most:
                return places
            at = text.find(special, at + len(special))
        # What is taken can be no part of another: no special token has a NUL.
        text = text.replace(special, bytes(len(special)))
    return sorted(places)


def parts(text: bytes, places: Sequence[int]) -> Iterator[bytes]:
    """Yield the text in parts that begin at a special token and hold at most MOST_PER_PART of them."""
    start = 0
    for place in places[MOST_PER_PART::MOST_PER_PART]:
        yield text[start:place]
        start = place
    yield text[start:]
