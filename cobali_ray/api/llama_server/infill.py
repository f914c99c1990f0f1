"""The prompt of an infill: what comes in front of a place and behind it, and other files. Pure.

Files first, then the place: the layout of arXiv 2409.12186, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cobali_ray.backend.port import InfillMarks

PREFIX_SHARE = 0.75
"""Of the room for both, where both are longer than that."""


def infilled(
    marks: InfillMarks,
    texts: tuple[str, str, str],
    files: Sequence[tuple[str, str]],
    *,
    tokenize: Callable[[str], list[int]],
    n_most: int,
) -> list[int] | None:
    """Return the tokens of a prompt of at most `n_most`; None where not even an empty place would fit.

    Args:
        marks: The vocabulary's tokens for it.
        texts: What is in front of the place, the beginning of the line that it is in, and what is behind it.
        files: Other files, name and text. The last ones stay, where not all fit.
        tokenize: Turns text into tokens, control tokens not read.
        n_most: Tokens there is room for. The nearest to the place stay.
    """
    before, line, suffix = (tokenize(text) for text in texts)
    prefix = before + line
    first = [] if marks.bos is None else [marks.bos]
    room = n_most - len(first) - 3  # the three marks around
    if room < 0:
        return None
    n_suffix = min(len(suffix), max(room - len(prefix), int(room * (1 - PREFIX_SHARE))))
    n_prefix = min(len(prefix), room - n_suffix)
    place = [marks.prefix, *prefix[len(prefix) - n_prefix :], marks.suffix, *suffix[:n_suffix], marks.middle]
    # The files begin the prompt: they change least, so that what is computed of them serves again.
    around = _files(marks, files, tokenize, room - n_prefix - n_suffix)
    return [*first, *around, *place]


def _files(
    marks: InfillMarks, files: Sequence[tuple[str, str]], tokenize: Callable[[str], list[int]], room: int
) -> list[int]:
    if not files:
        return []
    head = [] if marks.repository is None else [marks.repository, *tokenize("repository\n")]
    tail = [] if marks.file is None else [marks.file, *tokenize("file\n")]
    room -= len(head) + len(tail)
    kept: list[list[int]] = []
    for name, text in reversed(files):
        mark = tokenize(f"\n\n# {name}\n") if marks.file is None else [marks.file, *tokenize(f"{name}\n")]
        tokens = mark + tokenize(text)
        if len(tokens) > room:
            break
        room -= len(tokens)
        kept.append(tokens)
    return [*head, *(token for tokens in reversed(kept) for token in tokens), *tail] if kept else []
