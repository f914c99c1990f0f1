"""Answers under call grammars, over a vocabulary of bytes and the control tokens that a test wants."""

import re

import numpy as np

from cobali_ray.backend.grammar import Grammars
from cobali_ray.backend.pieces import Pieces
from cobali_ray.core.request.request import Grammar

N_BYTES = 256
END = 400
LOOKS_SPECIAL = re.compile(
    r"<[|\uff5c]\w[^<>]*>|<\w[^<>]*[|\uff5c]>|\[/?[A-Z_]+\]|</?think>|\uff5cDSML\uff5c"
)


class Vocabulary:
    """A token for every byte, one for each control token's text, which shows nothing, and merged ones."""

    ends = frozenset()

    def __init__(self, controls=(), merged=()):
        self._merged = {text.encode(): END - 1 - i for i, text in enumerate(merged)}
        self._pieces = {token: text for text, token in self._merged.items()}
        self.ids = {text: N_BYTES + i for i, text in enumerate(controls)}
        self.names = {token: text for text, token in self.ids.items()}
        found = sorted(self.ids, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, found)) + ")") if found else None
        self._grammars = Grammars(
            n_vocab=END + 1,
            pieces=Pieces(
                lambda token: bytes([token]) if token < N_BYTES else self._pieces.get(token, b""),
                lambda token: self.names.get(token, ""),
                frozenset({END}),
            ),
            tokenize=lambda text: list(text.encode()),
        )

    def special(self, marker):
        parts = self._cut.split(marker) if self._cut else [marker]
        return [self.ids.get(part, part) for part in parts if part and part not in self.ends]

    def tokens(self, text):
        found = []
        for part in self.special(text):
            if isinstance(part, int):
                found.append(part)
                continue
            rest = part.encode()
            while rest:
                longest = max((text for text in self._merged if rest.startswith(text)), key=len, default=b"")
                found.append(self._merged[longest] if longest else rest[0])
                rest = rest[max(len(longest), 1) :]
        return found

    def text(self, tokens):
        """Return what an answer of these tokens shows."""
        return b"".join(self._shown(token) for token in tokens).decode(errors="replace")

    def _shown(self, token):
        return bytes([token]) if token < N_BYTES else self._pieces.get(token) or self.names[token].encode()

    def refusal(self, grammar, text, *, heads=()):
        """Return "" if this is a whole answer, else where it is refused."""
        matcher, tokens = self.matcher(grammar, heads), self.tokens(text)
        for i, token in enumerate(tokens):
            if not matcher.allows(token):
                return f"{self.text(tokens[:i])!r}, then {self.text(tokens[i:])!r}"
            matcher.take(token)
        return "" if matcher.may_end or not matcher.holds else "more should follow"

    def written(self, grammar, rng, *, n_most=1500, start=""):
        """Return a random answer that goes on from this start; None if it takes more tokens."""
        matcher, tokens = self.matcher(grammar), self.tokens(start)
        for token in tokens:
            matcher.take(token)
        while not matcher.complete and len(tokens) < n_most:
            if matcher.may_end and rng.random() < 0.5:
                break
            allowed = np.unpackbits(matcher.mask(), count=END, bitorder="little").nonzero()[0]
            token = int(rng.choice(allowed))
            tokens.append(token)
            matcher.take(token)
        return self.text(tokens) if matcher.may_end else None

    def matcher(self, grammar, heads=()):
        return self._grammars.matcher(Grammar(grammar, "tools", heads=heads))


def controls_of(form):
    """Return what might be control tokens among a format's markers."""
    return sorted({found for marker in form.markers for found in LOOKS_SPECIAL.findall(marker)})
