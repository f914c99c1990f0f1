"""Pieces: the bytes that tokens show in an answer."""

from __future__ import annotations

from collections.abc import Callable, Collection


class Pieces:
    """What the tokens of one vocabulary show. Control tokens show nothing, unless a request asks for them."""

    def __init__(
        self, piece: Callable[[int], bytes], name: Callable[[int], str], end_tokens: frozenset[int]
    ) -> None:
        """`piece` gives what a token shows to everybody, `name` the text of one that shows nothing."""
        self._piece, self.name, self.end_tokens = piece, name, end_tokens

    def of(self, token: int, shown_tokens: Collection[int] = ()) -> bytes:
        """Return what a token shows in an answer that shows these control tokens; end tokens never are."""
        piece = self._piece(token)
        if not piece and shown_tokens and token in shown_tokens and token not in self.end_tokens:
            return self.name(token).encode()
        return piece

    def written(self, token: int) -> bytes:
        """Return a token as it stands in a prompt, where control tokens have their text."""
        return self._piece(token) or self.name(token).encode()
