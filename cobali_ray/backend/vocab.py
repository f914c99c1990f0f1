"""Vocab: text to tokens and back, and the chat template, of one GGUF file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from cobali_ray.backend import library
from cobali_ray.chat.template import CHATML, ChatTemplate
from cobali_ray.errors import BadRequestError, InvalidParameterError, ModelNotFoundError

_log = structlog.get_logger(__name__)

_PIECE_BYTES = 256


class Vocab:
    """A model's vocabulary. Its functions are thread-safe, so an ingress may use it from a pool."""

    def __init__(self, model: Any, *, owned: bool = False) -> None:
        self._lc = lc = library.load()
        self._model, self._owned = model, owned
        self._vocab = lc.llama_model_get_vocab(model)
        self.n_vocab: int = lc.llama_vocab_n_tokens(self._vocab)
        is_end = lc.llama_vocab_is_eog
        self.end_tokens = frozenset(i for i in range(self.n_vocab) if is_end(self._vocab, i))
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        template = lc.llama_model_chat_template(model, None)
        self.has_chat_template = bool(template)
        bos, eos = lc.llama_vocab_bos(self._vocab), lc.llama_vocab_eos(self._vocab)
        source = template.decode("utf-8", "replace") if template else CHATML
        self.chat = ChatTemplate(source, bos=self._name(bos), eos=self._name(eos))
        if self.chat.unreadable:  # plain completions need no template, so the model is served
            _log.warning("chat_template", detail=f"it cannot be read: {self.chat.unreadable}")

    @classmethod
    def load(cls, path: Path) -> Vocab:
        """Load only the vocabulary of a GGUF file. Raises ModelNotFoundError."""
        lc = library.load()
        params = lc.llama_model_default_params()
        params.vocab_only = True
        library.forget_errors()
        model = lc.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelNotFoundError("model", f"llama.cpp cannot read {path}: {library.errors()}")
        return cls(model, owned=True)

    def close(self) -> None:
        """Free the model if this object loaded it."""
        if self._owned and self._model:
            self._lc.llama_model_free(self._model)
            self._model = None

    def _name(self, token_id: int) -> str:
        known = 0 <= token_id < self.n_vocab
        return self._token_piece(token_id, special=True).decode("utf-8", "replace") if known else ""

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Turn text into token ids; `add_special` adds what the model wants at the start."""
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            n = self._lc.llama_tokenize(
                self._vocab, data, len(data), buffer, room, add_special, parse_special
            )
            if n >= 0:
                return buffer[:n]
            if n == -(2**31):
                raise BadRequestError("the text is too long to tokenise")
            room = -n

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """Turn token ids into text. Raises InvalidParameterError for an id outside the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise InvalidParameterError("tokens", f"token id {token} is not in 0 .. {self.n_vocab - 1}")
        pieces = [self._token_piece(token, special=special) for token in tokens]
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, token_id: int) -> bytes:
        """Return the bytes a token shows in an answer; control tokens show none."""
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
