"""Vocab: text to tokens and back, and the chat template, of one GGUF file."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from cobali_ray.backend import library
from cobali_ray.backend.markers import Markers
from cobali_ray.backend.port import InfillMarks, IsCancelled, never_cancelled
from cobali_ray.backend.turn_marks import turn_marks
from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import Format
from cobali_ray.chat.template import CHATML, ChatTemplate
from cobali_ray.errors import (
    BadRequestError,
    InvalidParameterError,
    ModelNotFoundError,
    TooManyTokensError,
)

_log = structlog.get_logger(__name__)

MAX_PER_PART = 512
"""Special tokens of one part of a text: few enough for their square not to matter, many enough for few calls.

llama.cpp looks for special tokens in the whole text and keeps what it finds in a list that it walks anew for
each of them, so its time grows with the square of their number: 60,000 in 600 kB take nine seconds. Between
special tokens nothing is shared, so a text that is cut in front of one can be tokenised part by part."""
_PIECE_BYTES = 256
_SHORT_BYTES = 8192
_AT_ONCE = 65_536
_MAX_UNCUT = 4096
"""Special tokens of a text that cannot be cut at them; the time to find them grows with their square."""
_FIELDS = re.compile(r"\{(query|document)\}")


def find_specials(text: bytes, specials: Sequence[bytes], n_most: int | None = None) -> list[int]:
    """Return where llama.cpp finds special tokens, in order: none of them overlap.

    `specials` has the longest first. Each takes, from the left, all places that are free of longer ones.
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
    """Yield the text in parts that begin at a special token and hold at most MAX_PER_PART of them."""
    start = 0
    for place in places[MAX_PER_PART::MAX_PER_PART]:
        yield text[start:place]
        start = place
    yield text[start:]


class Specials(NamedTuple):
    """The texts of a vocabulary's special tokens, longest first."""

    all: tuple[bytes, ...]
    user_defined: tuple[bytes, ...]
    """Those that are found also where control tokens are read as plain text."""
    may_cut: bool
    """Whether a text cut in front of a special token has the tokens of the whole."""
    longest_bytes: int
    """No token stands for more bytes of a text that may be cut."""


class Vocab:
    """A model's vocabulary. Its functions are thread-safe, so an ingress may use it from a pool."""

    def __init__(self, model: Any, *, owned: bool = False, chat_template: str | None = None) -> None:
        self._lc = lc = library.load()
        self._model, self._owned = model, owned
        self._vocab = lc.llama_model_get_vocab(model)
        self.n_vocab: int = lc.llama_vocab_n_tokens(self._vocab)
        is_end = lc.llama_vocab_is_eog
        self.end_tokens = frozenset(i for i in range(self.n_vocab) if is_end(self._vocab, i))
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        template = lc.llama_model_chat_template(model, None)
        ranking = lc.llama_model_chat_template(model, b"rerank")
        self._ranking = ranking.decode("utf-8", "replace") if ranking else ""
        bos, eos = lc.llama_vocab_bos(self._vocab), lc.llama_vocab_eos(self._vocab)
        own = template.decode("utf-8", "replace") if template else CHATML
        source = own if chat_template is None else chat_template
        self.chat = ChatTemplate(source, bos=self._name(bos), eos=self._name(eos), spent_s=time.thread_time)
        if self.chat.unreadable:  # plain completions need no template, so the model is served
            _log.warning("chat_template", detail=f"it cannot be read: {self.chat.unreadable}")

    @cached_property
    def form(self) -> Format:
        return derive(self.chat)

    @cached_property
    def markers(self) -> Markers:
        return Markers(self)

    @cached_property
    def turn_marks(self) -> frozenset[int]:
        return turn_marks(self)

    @cached_property
    def infill(self) -> InfillMarks | None:
        lc, vocab = self._lc, self._vocab
        prefix, suffix, middle, repository, file = (
            None if token < 0 else token
            for token in (
                lc.llama_vocab_fim_pre(vocab),
                lc.llama_vocab_fim_suf(vocab),
                lc.llama_vocab_fim_mid(vocab),
                lc.llama_vocab_fim_rep(vocab),
                lc.llama_vocab_fim_sep(vocab),
            )
        )
        if prefix is None or suffix is None or middle is None:
            return None
        bos = lc.llama_vocab_bos(vocab) if lc.llama_vocab_get_add_bos(vocab) else None
        return InfillMarks(prefix, suffix, middle, repository, file, bos)

    @classmethod
    def load(cls, path: Path, chat_template: str | None = None) -> Vocab:
        """Load only the vocabulary of a GGUF file; `chat_template` takes the place of its own.

        Raises ModelNotFoundError.
        """
        lc = library.load()
        params = lc.llama_model_default_params()
        params.vocab_only = True
        library.forget_errors()
        model = lc.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelNotFoundError("model", f"llama.cpp cannot read {path}: {library.errors()}")
        return cls(model, owned=True, chat_template=chat_template)

    def close(self) -> None:
        if self._owned and self._model:
            self._lc.llama_model_free(self._model)
            self._model = None

    def _name(self, token_id: int) -> str:
        exists = 0 <= token_id < self.n_vocab
        return self._token_piece(token_id, special=True).decode("utf-8", "replace") if exists else ""

    def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        n_most: int | None = None,
        is_cancelled: IsCancelled = never_cancelled,
    ) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        # Many times shorter than anything whose special tokens would take long to find.
        if len(data) > _SHORT_BYTES and not self._specials.may_cut and parse_special:
            places = find_specials(data, self._specials.all, _MAX_UNCUT)
            _at_most(len(places), n_most)  # each of them is a token
            if len(places) > _MAX_UNCUT:
                raise BadRequestError(f"the text has more than {_MAX_UNCUT} special tokens")
        if len(data) <= _SHORT_BYTES or not self._specials.may_cut:
            return self._tokenize(data, n_most, add_special=add_special, parse_special=parse_special)
        n_least = -(-len(data) // self._specials.longest_bytes)
        if n_most is not None and n_least > n_most:
            raise TooManyTokensError(n_least, n_most)
        specials = self._specials.all if parse_special else self._specials.user_defined
        places = find_specials(data, specials, n_most)
        _at_most(len(places), n_most)  # each of them is a token
        lc, tokens = self._lc, []
        if add_special and lc.llama_vocab_get_add_bos(self._vocab):
            tokens.append(lc.llama_vocab_bos(self._vocab))
        for part in parts(data, places):
            tokens += self._tokenize(part, n_most, add_special=False, parse_special=parse_special)
            _at_most(len(tokens), n_most)
            if is_cancelled():
                return tokens
        if add_special and lc.llama_vocab_get_add_eos(self._vocab):
            tokens.append(lc.llama_vocab_eos(self._vocab))
        _at_most(len(tokens), n_most)
        return tokens

    def pair(self, query: str, document: str, *, n_most: int | None = None) -> list[int]:
        # By the template that the file names `rerank`; else between the tokens that it adds to texts.
        if self._ranking:
            text = _FIELDS.sub(lambda field: query if field[1] == "query" else document, self._ranking)
            return self.tokenize(text, add_special=False, n_most=n_most)
        lc, vocab = self._lc, self._vocab
        end = int(lc.llama_vocab_eos(vocab))
        end = int(lc.llama_vocab_sep(vocab)) if end < 0 else end
        ends = [end] if lc.llama_vocab_get_add_eos(vocab) else []
        separator = [int(lc.llama_vocab_sep(vocab))] if lc.llama_vocab_get_add_sep(vocab) else []
        begin = [int(lc.llama_vocab_bos(vocab))] if lc.llama_vocab_get_add_bos(vocab) else []
        parts = [
            self.tokenize(text, add_special=False, parse_special=False, n_most=n_most)
            for text in (query, document)
        ]
        tokens = [*begin, *parts[0], *ends, *separator, *parts[1], *ends]
        _at_most(len(tokens), n_most)
        return tokens

    def _tokenize(
        self, data: bytes, n_most: int | None, *, add_special: bool, parse_special: bool
    ) -> list[int]:
        room = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            n = self._lc.llama_tokenize(
                self._vocab, data, len(data), buffer, room, add_special, parse_special
            )
            if n >= 0:
                _at_most(n, n_most)
                tokens: list[int] = []
                for start in range(0, n, _AT_ONCE):  # all at once would hold the interpreter
                    tokens += buffer[start : min(start + _AT_ONCE, n)]
                return tokens
            if n == -(2**31):
                raise BadRequestError("the text is too long to tokenise")
            room = -n

    @cached_property
    def _specials(self) -> Specials:
        """Read the special tokens; only long texts need them."""
        lc, vocab = self._lc, self._vocab
        user: int = lc.LLAMA_TOKEN_ATTR_USER_DEFINED
        specials: list[tuple[bytes, int]] = []
        longest = 1
        for token in range(self.n_vocab):
            text: bytes = lc.llama_vocab_get_text(vocab, token)
            longest = max(longest, len(text))  # no piece has more bytes than its text
            attr: int = lc.llama_vocab_get_attr(vocab, token)
            if text and attr & (lc.LLAMA_TOKEN_ATTR_CONTROL | user | lc.LLAMA_TOKEN_ATTR_UNKNOWN):
                specials.append((text, attr))
        specials.sort(key=lambda special: -len(special[0]))
        # A special token that swallows spaces beside it moves the borders of its neighbours; other
        # tokenizers than these two change the text first.
        strips = lc.LLAMA_TOKEN_ATTR_LSTRIP | lc.LLAMA_TOKEN_ATTR_RSTRIP
        may_cut = lc.llama_vocab_type(vocab) in {
            lc.LLAMA_VOCAB_TYPE_BPE,
            lc.LLAMA_VOCAB_TYPE_SPM,
        } and not any(attr & strips for _, attr in specials)
        return Specials(
            all=tuple(text for text, _ in specials),
            user_defined=tuple(text for text, attr in specials if attr & user),
            may_cut=may_cut,
            longest_bytes=longest,
        )

    def detokenize(
        self, tokens: Sequence[int], *, special: bool = True, is_cancelled: IsCancelled = never_cancelled
    ) -> str:
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise InvalidParameterError("tokens", f": token id {token} is not in 0 .. {self.n_vocab - 1}")
        pieces: list[bytes] = []
        for token in tokens:
            pieces.append(self._token_piece(token, special=special))
            if is_cancelled():
                break
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, token_id: int) -> bytes:
        piece = self._pieces[token_id]
        if piece is None:
            piece = self._pieces[token_id] = self._token_piece(token_id, special=False)
        return piece

    def _token_piece(self, token_id: int, *, special: bool) -> bytes:
        room = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._lc.llama_token_to_piece(self._vocab, token_id, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n


def _at_most(n_tokens: int, n_most: int | None) -> None:
    if n_most is not None and n_tokens > n_most:
        raise TooManyTokensError(n_tokens, n_most)
