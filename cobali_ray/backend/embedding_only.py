"""EmbeddingBackend: a Backend of a model that embeds and nothing else, such as BERT. It has no KV cache."""

from __future__ import annotations

from typing import Any, Never

from cobali_ray.backend import library
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.device_watch import DeviceWatch
from cobali_ray.backend.devices import Devices, open_devices
from cobali_ray.backend.embedder import LlamaEmbedder, only_embeds, pooling_of
from cobali_ray.backend.fit import fitting, too_large
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.loading import load_model
from cobali_ray.backend.port import Backend, DeviceWatcher, Embedder, Words
from cobali_ray.backend.projector import Projector
from cobali_ray.backend.vocab import Vocab
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.request.limits import MIN_SCORED_ROWS, Grain
from cobali_ray.core.request.request import NEUTRAL
from cobali_ray.errors import BackendError, ConfigError


def open_llama(config: LlamaConfig) -> Backend:
    """Load a model as what it is, if its devices can hold it. Raises ConfigError."""
    devices = open_devices(config)
    try:
        return _on(fitting(config, devices), devices)
    except BaseException:
        devices.close()
        raise


def _on(config: LlamaConfig, devices: Devices) -> Backend:
    try:
        model = load_model(config, devices)
        kind = EmbeddingBackend if only_embeds(library.load(), model) else LlamaBackend
        return kind(config, model, devices)
    except ConfigError as error:
        # Devices of workers were checked in `fitting`, and may be released by now.
        if not devices.lent and (refusal := too_large(config, devices)) is not None:
            raise refusal from error
        raise


def _embedder(config: LlamaConfig, model: Any) -> LlamaEmbedder:
    if config.adapters:
        raise ConfigError("adapters", f"{config.path} only embeds, and texts are embedded without adapters")
    if (pooling := config.pooling or pooling_of(library.load(), model)) is None:
        raise ConfigError(
            "pooling",
            f"{config.path} names no pooling type, which says how the vectors of a text's tokens become one",
        )
    return LlamaEmbedder(model, pooling=pooling, config=config)


class EmbeddingBackend:
    """No request for text reaches it: the door knows that the model only embeds."""

    def __init__(self, config: LlamaConfig, model: Any, devices: Devices) -> None:
        lc = library.load()
        self._model, self._devices = model, devices
        self.devices: DeviceWatcher = DeviceWatch(devices, config)
        try:
            self._embedder = _embedder(config, model)
        except BaseException:  # else its memory would be lost until the process ends
            lc.llama_model_free(model)
            raise
        self.embedder: Embedder | None = self._embedder
        self.words: Words = (vocab := Vocab(model))
        self.piece = vocab.piece
        self.n_vocab, self.end_tokens, self.sampling = vocab.n_vocab, vocab.end_tokens, NEUTRAL
        self.n_slots, self.n_scored_rows = 1, MIN_SCORED_ROWS
        self.projector: Projector | None = None
        self.adapters: tuple[Adapter, ...] = ()
        self.n_ctx_slot = self.n_cells = self.n_batch = self._embedder.kind.n_most
        self.grain, self.generates, self.overlaps, self.has_head = Grain(), False, False, False
        self.cuts_tails = self.copies = self.shares = self.dense = False
        self.keeps_states = self.states_alone = False
        self.max_draft = 0

    def forward(self, *_: object, **__: object) -> Never:
        """Refuse, like all that needs slots."""
        raise BackendError("this model generates no text")

    expect = sample = guess = truncate = copy = swap = save = restore = save_state = restore_state = forward

    def use(self, *_: object) -> None:
        """Do nothing: there are no adapters, passes or slots."""

    wait = clear = use

    def measure_cell(self) -> int:
        """Return 0: there are no cells, and no graphs."""
        return 0

    n_reused = measure_state = measure_cell

    def cell_kind(self) -> str:
        """Return that there are none."""
        return "none"

    def close(self) -> None:
        if self._model:
            self._embedder.close()
            library.load().llama_model_free(self._model)
        self._model = None
        self._devices.close()
