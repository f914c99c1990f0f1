"""What an operator may set. One model for serve_config.yaml, the environment and the command line.

Order of sources: the environment (`COBALI_N_SLOTS=8`) wins over what the file or the caller says.
"""

from __future__ import annotations

import os
import re
import stat
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from cobali_ray.core.embedding import ChosenPooling
from cobali_ray.core.limits import (
    MAX_SLOTS,
    PLAIN_CELL_TYPES,
    CellType,
    EngineLimits,
    Grain,
    PrefillOrder,
)
from cobali_ray.core.pace import Pacer
from cobali_ray.core.request import NEUTRAL, SamplingParams, tuned
from cobali_ray.errors import ConfigError, InvalidParameterError, InvariantError

MAX_COUNT = (1 << 31) - 1
"""What llama.cpp can count to."""
MAX_THREADS = 512
"""What ggml can compute with."""
MAX_S = 1e9
"""Thirty years, which every clock can wait."""
MAX_CPUS = 8192
"""What Linux can number."""
MAX_WORD = 4096
"""Characters of a path, which Linux knows none longer of, and of anything else that is one word."""
_LISTS = frozenset({"model_aliases", "api_keys", "allowed_origins"})
"""Many words, which the environment has in one."""
MAX_TEXT_BYTES = 16 << 20
"""Of a file that a setting names and that people write."""
DEFAULT_N_CTX = 4096
PREFIX = "COBALI_"
NOT_SETTINGS = frozenset({
    "COBALI_API_KEY", "COBALI_CACHE", "COBALI_COMPILE", "COBALI_DASHBOARDS", "COBALI_KEY",
    "COBALI_RAY_FORK_SERVER",
})  # fmt: skip
"""Names in the environment that others read: commands that ask a server, caches of models and wheels,
Grafana, the page's snippets, and Ray's workers of `cobali serve`."""

_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,A-Z]+|null|\*")
"""What browsers send as `Origin`: `null` for files, and for frames that their page does not trust. Or all."""


OF_INGRESS = frozenset({
    "api_keys", "allowed_origins", "strict", "max_body_bytes", "default_max_tokens", "default_timeout_s",
    "min_stream_gap_s", "n_ingress", "api_keys_file",
})  # fmt: skip
"""Only the HTTP layer reads these; an engine has none of its own and does not see them."""
OF_ALL = OF_INGRESS | {"engines", "log_level", "drain_timeout_s", "otlp_endpoint"}
"""Allowed only at the top level of the file."""


class AdapterSettings(BaseModel):
    """A LoRA adapter, served under a name of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    file: Annotated[str, Field(min_length=1)]
    """A GGUF path, hf://owner/repo/file.gguf[@revision], or builtin:synthetic-adapter[:SEED]."""
    scale: float = Field(default=1.0, ge=-1e6, le=1e6)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        """Take a file alone."""
        return {"file": value} if isinstance(value, str) else value

    @field_validator("file")
    @classmethod
    def _can_be_named(cls, value: str) -> str:
        if not _is_text(value):
            raise ValueError("must be text without null characters")
        return value


class EngineSettings(BaseSettings):
    """Settings of one engine and its ingress, or what several have in common.

    Counts are tokens unless the name says otherwise.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        validate_default=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # Serve prints pydantic's own report
    )

    # -- which engines
    engines: dict[str, dict[str, Any]] = {}
    """Several engines by name, each with its own settings; the rest comes from the top level. Empty: one
    engine."""
    replicas: int = Field(default=1, ge=1, le=64)
    """Processes per engine; each loads the model, and they share the requests."""
    min_replicas: int | None = Field(default=None, ge=0, le=64)
    """Replicas loaded at the start that stay loaded; the others are loaded when requests would wait, and
    unloaded when idle. None: all."""
    scale_up_wait_s: float = Field(default=1.0, gt=0, le=MAX_S)
    """Load one more replica when the predicted waits of requests stay above this."""
    cores: str | None = None
    """CPUs an engine may use, such as 0-3,8; replicas get equal shares. None: all of this process."""
    gpu_share: float | None = Field(default=None, ge=0, le=MAX_CPUS)
    """GPUs, or the fraction of one, that Ray reserves for an engine. None: one, shared by all engines that
    use a GPU."""
    gpus: str | None = None
    """Which GPUs of its machine an engine sees, such as 0 or 2-3, numbered as in nvidia-smi; replicas get
    equal shares, or take turns if there are fewer GPUs. None: those that Ray assigns."""

    load: Literal["eager", "on_demand"] = "eager"
    """When an engine loads its model: at the start, or with the first request for it. Only the latter may be
    unloaded to make room for another."""
    keep_alive_s: float | None = Field(default=None, gt=0, le=MAX_S)
    """How long an idle model stays loaded; None: until another needs its memory, or a client unloads it."""

    # -- model
    model: str = "builtin:tiny"
    """A GGUF path, hf://owner/repo[:QUANT], hf://owner/repo/file.gguf[@revision], builtin:NAME[:QUANT], or a
    name that `cobali models list` shows."""
    model_id: str | None = None
    """The name that clients use; None: taken from the model."""
    model_aliases: Annotated[tuple[str, ...], NoDecode] = ()
    mmproj: str | None = None
    """The projector of a model that sees images: a GGUF path or hf://owner/repo/file.gguf."""
    vocab_gguf: Path | None = None
    """Vocabulary GGUF for built-in models that have Qwen2's vocabulary."""
    pooling: ChosenPooling | None = None
    """How the vectors of a text's tokens become one; None: as the model's file says. With it, a model that
    generates text also embeds, in a second context."""
    adapters: dict[Annotated[str, Field(min_length=1)], AdapterSettings] = {}
    """LoRA adapters for the model, by the names that clients use: a file, or `{file: ..., scale: ...}`."""
    chat_template: Path | None = None
    """A Jinja file to use instead of the model's own chat template."""
    cache_dir: Path | None = None
    scripted_tick_s: float = Field(default=0.02, ge=0, le=MAX_S)
    """Seconds from one forward pass to the next of builtin:scripted, the model that only pretends."""

    # -- scheduling
    mode: Literal["sequential", "continuous"] = "continuous"
    n_slots: int = Field(default=16, ge=1, le=MAX_SLOTS)
    n_ctx: Annotated[int, Field(ge=16, le=MAX_COUNT)] | Literal["auto"] = DEFAULT_N_CTX
    """Most tokens of one request, prompt and answer together; auto: what the model was trained for, or less
    if half of the memory left after its weights cannot hold that for every slot."""
    prefill_chunk: int = Field(default=512, ge=0, le=MAX_COUNT)
    """Most prompt tokens of one request in one tick; 0 computes every prompt whole."""
    token_budget: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Most tokens in one tick; None: one chunk plus one token for every slot."""
    itl_target_ms: Annotated[float, Field(le=MAX_S)] | Literal["auto", "off"] = "auto"
    """Longest gap, in milliseconds, that prefill may cause between the tokens of running streams.

    auto: weighs the wait of prompts against the gaps of streams, also where the streams' own tokens take
    longer than the number that was set; off: always prefill_chunk tokens, however long they take."""
    prefill_order: PrefillOrder = "shortest"
    selector: Literal["host", "numpy", "cuda"] = "host"
    """What chooses the slots that decode: a loop over the slots, numpy, or kernels on a CUDA device."""
    speculation: Literal["auto", "off"] = "off"
    """Whether a few streams guess ahead from their own text, where that is expected to pay."""
    min_prefix: int = Field(default=32, ge=0, le=MAX_COUNT)
    """Shortest prefix worth reusing; 0: never reuse one."""
    host_cache_mib: Annotated[int, Field(ge=0, le=MAX_COUNT)] | Literal["auto"] = "auto"
    """Host memory for prefixes that no longer fit in slots and for preempted requests; auto: a tenth of what
    is free at the start; 0: none."""
    slot_save_path: Path | None = None
    """Folder where clients may save slots by name (`POST /slots/ID?action=save`); None: they may not."""
    disk_cache_dir: Path | None = None
    """Folder that keeps the prefixes of host memory across restarts; None: they are not kept."""
    disk_cache_gib: float = Field(default=10.0, gt=0, le=MAX_COUNT)
    """Most that all files in it may take, whichever server wrote them."""
    max_queue: int = Field(default=128, ge=0, le=MAX_COUNT)
    """How many requests may wait before new ones get 429."""
    max_queue_tokens: int = Field(default=262_144, ge=0, le=MAX_COUNT)
    """How many prompt tokens may wait before new requests get 429."""
    max_predicted_ttft_s: float | None = Field(default=None, gt=0, le=MAX_S)
    """Refuse a request (429) if its answer is predicted to begin later; None: take whatever the queue has
    room for."""

    # -- llama.cpp
    kv: Literal["auto", "split", "unified"] = "auto"
    """auto: unified where kv_cells overcommits the cache, split otherwise."""
    kv_cells: int | None = Field(default=None, ge=16, le=MAX_COUNT)
    """KV cells of all slots together; None: n_slots * n_ctx. Needs a unified cache."""
    type_k: CellType = "f16"
    """How keys are stored in the KV cache."""
    type_v: CellType = "f16"
    """The same for values; all but f16 and bf16 need flash attention."""
    n_threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    """None: one per physical core this process may use, within the CPU quota of its control groups."""
    threads_wait: Literal["auto", "active", "passive"] = "auto"
    """How compute threads wait for each other: active spins (fast on an idle machine), passive sleeps (safe
    on a busy one), auto spins briefly and then sleeps."""
    n_gpu_layers: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | Literal["auto"] = "auto"
    """Layers on the GPU; auto puts all there if llama.cpp was built for one, -1 means all."""
    flash_attn: Literal["auto", "on", "off"] = "auto"
    device_sampling: Literal["auto", "on", "off"] = "auto"
    """Whether the device picks each row's 128 likeliest tokens; auto: where the whole model is on a GPU and
    there are at least 32 slots."""

    # -- API
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(default=(), repr=False, exclude=True)
    """Excluded, so that no message, report or repr shows them."""
    api_keys_file: Path | None = None
    """YAML file with keys by name, what each may do and how much; read again when it changes."""
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Other origins of web pages that may use the server, such as https://chat.example; `*` allows all."""
    strict: bool = False
    """Refuse requests with unknown fields instead of naming them in a header."""
    max_body_bytes: int = Field(default=8 << 20, ge=1024, le=1 << 40)
    default_max_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Longest answer if a request names no limit; None: the rest of the slot."""
    default_sampling: Literal["model", "openai"] | dict[str, float] = "model"
    """Sampling if a request does not set it: what the model's file recommends; OpenAI's values; or the file's
    with these changed."""
    default_timeout_s: float | None = Field(default=None, gt=0, le=MAX_S)
    min_stream_gap_s: float = Field(default=0.0, ge=0, le=MAX_S)
    """Least time between two writes of one stream, after its first token."""

    # -- serving
    n_ingress: int = Field(default=1, ge=1, le=64)
    """HTTP replicas in front of the engine."""
    stall_timeout_s: float = Field(default=60.0, gt=0, le=MAX_S)
    """Longest tick, and longest silence, before the engine counts as hung and is replaced."""
    drain_timeout_s: float = Field(default=30.0, ge=0, le=MAX_S)
    """How long running requests may continue when the server stops."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_ticks: Path | None = None
    """Write one JSON line per tick to this file."""
    log_prompts: bool = False
    """Show the beginning of each prompt in the feed of ticks; anyone with a key can read it there."""
    otlp_endpoint: str | None = Field(default=None, repr=False, exclude=True)
    """Base URL of an OpenTelemetry collector that takes spans over HTTP, such as http://127.0.0.1:4318.
    It may hold a password."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file's values."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse unknown names, in the environment too: they would be ignored in silence."""
        variables = [f"{PREFIX}{name.upper()}" for name in cls.model_fields]
        exported = {name.upper() for name in os.environ if name.upper().startswith(PREFIX)}
        unknown = [name for name in values if name not in cls.model_fields]
        unknown += sorted(exported - NOT_SETTINGS.union(variables))
        if unknown:
            near = get_close_matches(unknown[0], [*cls.model_fields, *variables], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{unknown[0]}: there is no such setting{hint}")
        for name, value in values.items():
            if isinstance(value, str | Path):
                if not _is_text(str(value)):
                    raise ValueError(f"{name}: must be text without null characters")
                if name not in _LISTS and len(str(value)) > MAX_WORD:
                    raise ValueError(f"{name}: must not be longer than {MAX_WORD:,} characters")
        return values

    @field_validator("flash_attn", "device_sampling", "itl_target_ms", "speculation", mode="before")
    @classmethod
    def _on_off(cls, value: Any) -> Any:
        """Undo YAML, which reads a bare `off` as a boolean."""
        return {False: "off", True: "on"}[value] if isinstance(value, bool) else value

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        """Refuse what could never be reached, such as a bare host and port."""
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must be a URL that begins with http:// or https://")
        return value

    @field_validator("model_aliases", "api_keys", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Read `a,b` as two names, which is how the environment says it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip()) or ("",)
        return value

    @field_validator("model_aliases", "api_keys", "allowed_origins")
    @classmethod
    def _not_blank(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse what no client could send. An exported variable that is empty must not open the server."""
        if any(not name or name != name.strip() for name in names):
            raise ValueError("a name must not be empty, nor begin or end with a space")
        return names

    @field_validator("engines", mode="before")
    @classmethod
    def _have_settings(cls, value: Any) -> Any:
        """Let an engine say nothing of its own, which YAML reads as null."""
        return {name: own or {} for name, own in value.items()} if isinstance(value, dict) else value

    @field_validator("cores", "gpus", mode="before")
    @classmethod
    def _are_listed(cls, value: Any) -> Any:
        """Refuse what is not a list of numbers; YAML reads a single one as a number."""
        if value is not None:
            listed(str(value))
            return str(value)
        return value

    @field_validator("default_sampling")
    @classmethod
    def _are_in_range(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        """Refuse what a request could not ask for either."""
        if not isinstance(value, str):
            try:
                tuned(NEUTRAL, value)
            except InvalidParameterError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse what no browser would send, such as a URL with a path."""
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{_short(origin)} is not an origin such as https://chat.example:8443, null or *"
                )
        return origins

    @model_validator(mode="after")
    def _fits_together(self) -> EngineSettings:
        if isinstance(self.itl_target_ms, float | int) and self.itl_target_ms <= 0:
            raise ValueError(f"itl_target_ms: must be above 0, auto or off, got {self.itl_target_ms:g}")
        for name in self.adapters:
            if name in self.names or name != name.strip():
                raise ValueError(
                    f"adapters: {name!r} cannot name an adapter: it is one of the model's names, "
                    "or begins or ends with a space"
                )
        if self.kv_cells is not None and self.kv == "split":
            raise ValueError("kv_cells: a split cache has n_slots * n_ctx cells; use kv: unified")
        known = self.n_ctx != "auto"
        if known and self.kv_cells is not None and self.kv_cells > self.n_slots * self.n_ctx_known:
            raise ValueError(
                f"kv_cells: {self.kv_cells} is more than n_slots * n_ctx, the most that slots can use"
            )
        if self.disk_cache_dir is not None and not (self.host_cache_mib and self.min_prefix):
            raise ValueError(
                "disk_cache_dir: needs host memory, so host_cache_mib and min_prefix must be above 0"
            )
        if self.type_v not in PLAIN_CELL_TYPES and self.flash_attn == "off":
            raise ValueError(f"type_v: {self.type_v} needs flash_attn: on or auto, got off")
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(f"min_replicas: {self.min_replicas} is more than replicas: {self.replicas}")
        if self.min_replicas and self.load == "on_demand":
            raise ValueError("min_replicas: with load: on_demand, none is loaded at the start")
        if self.mode == "continuous" and self.token_budget is not None and self.token_budget < self.n_slots:
            raise ValueError(f"token_budget: {self.token_budget} cannot feed n_slots: {self.n_slots}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which clients may ask for the model, its own first."""
        return tuple(dict.fromkeys((self.model_id or _name_of(self.model), *self.model_aliases)))

    @property
    def unified(self) -> bool:
        """Whether all slots share one KV pool."""
        return self.kv == "unified" or (self.kv == "auto" and self.kv_cells is not None)

    @property
    def disk_bytes(self) -> int:
        """Most that prefixes may take on disk; 0 without a folder for them."""
        return 0 if self.disk_cache_dir is None else int(self.disk_cache_gib * (1 << 30))

    @property
    def n_slots_used(self) -> int:
        """Slots in this mode: sequential serves one request at a time."""
        return 1 if self.mode == "sequential" else self.n_slots

    @property
    def n_ctx_known(self) -> int:
        """Most tokens of one request, once `auto` has become a number."""
        if self.n_ctx == "auto":
            raise InvariantError("n_ctx is auto, and no model was looked at")
        return self.n_ctx

    def at(self, n_ctx: int) -> EngineSettings:
        """Return these settings with another `n_ctx`."""
        return self.model_copy(update={"n_ctx": n_ctx})

    @property
    def chunk(self) -> int:
        """Most prompt tokens of one request in one tick, in this mode."""
        return self.n_ctx_known if self.mode == "sequential" or not self.prefill_chunk else self.prefill_chunk

    @property
    def budget(self) -> int:
        """Most tokens of one tick, in this mode."""
        n_ctx = self.n_ctx_known
        if self.mode == "sequential":
            return n_ctx
        n_cells = self.n_slots * n_ctx
        return self.token_budget or min(min(self.chunk, n_ctx) + self.n_slots, n_cells)

    def pacer(self, grain: Grain | None = None) -> Pacer:
        """Return the pacer these settings ask for, given the backend's grain."""
        if self.itl_target_ms == "off":
            return Pacer(None, grain)
        if self.itl_target_ms == "auto":
            return Pacer("auto", grain)
        return Pacer(self.itl_target_ms / 1000, grain)

    def sampling(self, advised: SamplingParams) -> SamplingParams:
        """Return the defaults of requests, given what the model's file advises."""
        if isinstance(self.default_sampling, str):
            return advised if self.default_sampling == "model" else NEUTRAL
        return tuned(advised, self.default_sampling)

    def limits(
        self,
        *,
        n_ctx_slot: int,
        n_cells: int,
        cuts_tails: bool = True,
        copies: bool = False,
        shares: bool = False,
        dense: bool = False,
        grain: Grain | None = None,
        n_scored_rows: int = 256,
        cell_bytes: int = 0,
        host_bytes: int = 0,
    ) -> EngineLimits:
        """Return the scheduler's bounds, given what the backend really opened."""
        settings = self.at(n_ctx_slot) if self.n_ctx == "auto" else self
        return EngineLimits(
            n_slots=self.n_slots_used,
            n_ctx_slot=n_ctx_slot,
            n_cells=n_cells,
            token_budget=settings.budget,
            prefill_chunk=settings.chunk,
            prefill_order=self.prefill_order,
            max_queue=self.max_queue,
            max_queue_tokens=self.max_queue_tokens,
            min_prefix=self.min_prefix if cuts_tails else 0,
            n_host_cells=host_bytes // cell_bytes if cell_bytes else 0,
            cell_bytes=cell_bytes,
            copies=copies,
            shares=shares,
            dense=dense,
            n_scored_rows=n_scored_rows,
            grain=grain or Grain(),
        )


class _OwnSettings(EngineSettings):
    """Settings of one of several engines, in which the environment has had its say already."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing but what the file says of the engine."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def read_settings(values: dict[str, Any]) -> EngineSettings:
    """Parse settings, turning pydantic's report into one ConfigError that names the setting."""
    return _read(EngineSettings, values)


def settings_of_engines(settings: EngineSettings) -> dict[str, EngineSettings]:
    """Return each engine's own settings, on top of what is common; the only one's name is empty.

    Raises ConfigError that names the engine and the setting.
    """
    if not settings.engines:
        return {"": settings}
    common = {name: getattr(settings, name) for name in EngineSettings.model_fields if name != "engines"}
    found: dict[str, EngineSettings] = {}
    owners: dict[str, str] = {}
    for engine, own in settings.engines.items():
        place = f"engines.{engine}"
        if not _ENGINE_NAME.fullmatch(engine):
            raise ConfigError(place, "a name is made of letters, digits, dots, dashes and underscores")
        for name in OF_ALL.intersection(own):
            raise ConfigError(
                f"{place}.{name}", "applies to all engines: put it next to `engines`, not inside"
            )
        try:
            read = _read(_OwnSettings, common | own)
        except ConfigError as error:
            raise ConfigError(f"{place}.{error.setting}", error.message) from error
        found[engine] = settings.model_copy(update=dict(read))
        for name in (*found[engine].names, *found[engine].adapters):
            if name in owners:
                setting = "adapters" if name in found[engine].adapters else "model_id"
                raise ConfigError(
                    f"{place}.{setting}", f"the name {name!r} is taken by engines.{owners[name]}"
                )
            owners[name] = engine
    return found


def listed(text: str) -> tuple[int, ...]:
    """Read a list of CPUs or GPUs as Linux writes it: `0-3,8`. Raises ValueError."""
    found: dict[int, None] = {}
    for part in text.split(","):
        low, dash, high = (word.strip() for word in part.partition("-"))
        ends = low, high if dash else low
        if not all(end.isdecimal() for end in ends):
            raise ValueError("must be a list such as 0-3,8")
        if max(map(len, ends)) > 4 or int(ends[1]) < int(ends[0]) or int(ends[1]) >= MAX_CPUS:
            raise ValueError(f"must be a list such as 0-3,8, of numbers below {MAX_CPUS}")
        found |= dict.fromkeys(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(found)


def read_text(setting: str, path: Path) -> str:
    """Read a file that a setting names. Raises ConfigError where it is none, too large, or not text."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(setting, f"{path} is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise ConfigError(setting, f"{path} is larger than {MAX_TEXT_BYTES >> 20} MiB")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(setting, f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(setting, f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(setting, f"{path} cannot be read: it is not text") from None


def _is_text(value: str) -> bool:
    """Whether a string can name a file and be logged: no null character, no half of a surrogate pair."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 2, 3, 3, 80, 80


def _short(value: Any) -> str:
    """Show what was said; a few words in YAML can stand for more than memory holds."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a number that Python writes no digits of
        return "a very large number"


def _name_of(reference: str) -> str:
    """Return the name of a model that was given none: the last word of its reference, without `.gguf`."""
    if reference.startswith("builtin:"):
        return reference.removeprefix("builtin:")
    place = reference if reference.endswith(".gguf") else reference.rsplit("@", 1)[0]
    return place.rpartition("/")[2].removesuffix(".gguf")


def _read(kind: type[EngineSettings], values: dict[str, Any]) -> EngineSettings:
    for name in values:
        if not isinstance(name, str) or name.startswith("_"):  # the latter is for pydantic
            raise ConfigError(_short(name), "there is no such setting")
    try:
        return kind(**values)
    except SettingsError as error:  # of a variable that should be JSON
        named = re.search(r'field "(\w+)"', str(error))
        raise ConfigError(named[1] if named else "engines", "the variable is not valid JSON") from None
    except RecursionError:
        raise ConfigError("engines", "is nested too deeply") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]) if first["loc"] else "settings"
        # Of a union, one report per member.
        reports = [report for report in error.errors() if report["loc"][:1] == first["loc"][:1]]
        message = "; ".join(dict.fromkeys(report["msg"].removeprefix("Value error, ") for report in reports))
        if not first["loc"] and ": " in message:
            where, message = message.split(": ", 1)
        field = EngineSettings.model_fields.get(where)
        hidden = not first["loc"] or field is None or field.exclude
        shown = "" if hidden else f" (got {_short(first['input'])})"
        raise ConfigError(where, f"{message}{shown}") from error
