"""EngineSettings: all that may be set of one engine and of what stands before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from cobali_ray.backend.config import LlamaSettings
from cobali_ray.backend.endpoint import is_endpoint
from cobali_ray.core.request.limits import (
    DEFAULT_SLOTS,
    MAX_COUNT,
    MAX_S,
    PLAIN_CELL_TYPES,
    LimitSettings,
    Seconds,
)
from cobali_ray.core.request.request import NEUTRAL, SamplingParams, tuned
from cobali_ray.errors import InvalidParameterError
from cobali_ray.settings.api import ApiSettings, Name
from cobali_ray.settings.files import is_text

MAX_CPUS = 8192
"""What Linux can number."""
MAX_WORD = 4096
"""Characters of a path, which Linux knows none longer of, and of anything else that is one word."""


def listed(text: str) -> tuple[int, ...]:
    """Read a list of CPUs or GPUs as Linux writes it: `0-3,8`. Raises ValueError."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        low, dash, high = (word.strip() for word in part.partition("-"))
        ends = low, high if dash else low
        if not all(end.isdecimal() for end in ends):
            raise ValueError("must be a list such as 0-3,8")
        if max(map(len, ends)) > 4 or int(ends[1]) < int(ends[0]) or int(ends[1]) >= MAX_CPUS:
            raise ValueError(f"must be a list such as 0-3,8, of numbers below {MAX_CPUS}")
        numbers |= dict.fromkeys(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(numbers)


def _is_listed(value: Any) -> Any:
    """Refuse what is not a list of numbers; YAML reads a single one as a number."""
    if value is None:
        return None
    if not isinstance(value, str | int):  # what YAML's aliases repeat would be gigabytes as text
        raise ValueError("must be a list such as 0-3,8")  # noqa: TRY004 pydantic's reports are of these
    listed(str(value))
    return str(value)


def _is_url(value: str) -> str:
    """Refuse what could never be reached, such as a bare host and port."""
    if not value.startswith(("http://", "https://")):
        raise ValueError("must be a URL that begins with http:// or https://")
    return value


def _is_named(file: str) -> str:
    if not is_text(file):
        raise ValueError("must be text without null characters")
    return file


Numbers: TypeAlias = Annotated[str | None, BeforeValidator(_is_listed)]
Replicas: TypeAlias = Annotated[int, Ge(1), Le(64)]


class AdapterSettings(BaseModel):
    """A LoRA adapter, served under a name of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    file: Annotated[str, Field(min_length=1), AfterValidator(_is_named)]
    """A GGUF path, hf://owner/repo/file.gguf[@revision], or builtin:synthetic-adapter[:SEED]."""
    scale: float = Field(default=1.0, ge=-1e6, le=1e6)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The processes of an engine: how many, on what of the machine, and when they hold the model."""

    replicas: Replicas = 1
    """Processes per engine; each loads the model, and they share the requests."""
    min_replicas: Annotated[int, Ge(0), Le(64)] | None = None
    """Replicas loaded at the start that stay loaded; the others are loaded when requests would wait, and
    unloaded when idle. None: all."""
    scale_up_wait_s: Seconds = 1.0
    """Load one more replica when the predicted waits of requests stay above this."""
    cores: Numbers = None
    """CPUs an engine may use, such as 0-3,8; replicas get equal shares. None: all of this process."""
    gpu_share: Annotated[float, Ge(0), Le(MAX_CPUS)] | None = None
    """GPUs, or the fraction of one, that Ray reserves for an engine. None: one, shared by all engines that
    use a GPU."""
    gpus: Numbers = None
    """Which GPUs of its machine an engine sees, such as 0 or 2-3, numbered as in nvidia-smi; replicas get
    equal shares, or take turns if there are fewer GPUs. None: those that Ray assigns."""
    load: Literal["eager", "on_demand"] = "eager"
    """When an engine loads its model: at the start, or with the first request for it. Only the latter may be
    unloaded to make room for another."""
    keep_alive_s: Seconds | None = None
    """How long an idle model stays loaded; None: until another needs its memory, or a client unloads it."""
    stall_timeout_s: Seconds = 60.0
    """Longest tick, and longest silence, before the engine counts as hung and is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSettings:
    """Prefixes that are kept outside the KV cache: in host memory, on disk, in files that clients save."""

    host_cache_mib: Annotated[int, Ge(0), Le(MAX_COUNT)] | Literal["auto"] = "auto"
    """Host memory for prefixes that no longer fit in slots and for preempted requests; auto: a tenth of what
    is free at the start; 0: none."""
    state_cache_mib: Annotated[int, Ge(0), Le(MAX_COUNT)] | Literal["auto"] = "auto"
    """Host memory for saved states of models with recurrent layers or sliding windows, without which these
    compute most prompts from their beginning; auto: a tenth of what is free at the start; 0: none."""
    slot_save_path: Path | None = None
    """Folder where clients may save slots by name (`POST /slots/ID?action=save`); None: they may not."""
    disk_cache_dir: Path | None = None
    """Folder that keeps the prefixes of host memory across restarts; None: they are not kept."""
    disk_cache_gib: Annotated[float, Gt(0), Le(MAX_COUNT)] = 10.0
    """Most that all files in it may take, whichever server wrote them."""

    @property
    def disk_bytes(self) -> int:
        """Most that prefixes may take on disk; 0 without a folder for them."""
        return 0 if self.disk_cache_dir is None else int(self.disk_cache_gib * (1 << 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What holds for all processes of a server."""

    drain_timeout_s: Annotated[float, Ge(0), Le(MAX_S)] = 30.0
    """How long running requests may continue when the server stops."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: Annotated[str, AfterValidator(_is_url)] | None = field(default=None, repr=False)
    """Base URL of an OpenTelemetry collector that takes spans over HTTP, such as http://127.0.0.1:4318.
    It may hold a password."""


class EngineSettings(BaseModel):
    """Settings of one engine and its ingress, or what several have in common.

    Made of flat names, `EngineSettings(n_slots=8, strict=True)`, and dumped as such; each is a field here or
    in one of the groups.
    """

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # other code that validates prints pydantic's own report
    )

    engines: dict[str, dict[str, Any]] = {}
    """Several engines by name, each with its own settings; the rest comes from the top level. Empty: one
    engine."""

    model: str = "builtin:tiny"
    """A GGUF path, hf://owner/repo[:QUANT], hf://owner/repo/file.gguf[@revision], builtin:NAME[:QUANT], or a
    name that `cobali models list` shows."""
    model_id: str | None = None
    """The name that clients use; None: taken from the model."""
    model_aliases: tuple[Name, ...] = ()
    mmproj: str | None = None
    """The projector of a model that sees images: a GGUF path or hf://owner/repo/file.gguf."""
    adapters: dict[Annotated[str, Field(min_length=1)], AdapterSettings] = {}
    """LoRA adapters for the model, by the names that clients use: a file, or `{file: ..., scale: ...}`."""
    chat_template: Path | None = None
    """A Jinja file to use instead of the model's own chat template."""
    cache_dir: Path | None = None
    """Folder for models that are made here; None: the user's."""
    default_sampling: Literal["model", "openai"] | dict[str, float] = "model"
    """Sampling if a request does not set it: what the model's file recommends; OpenAI's values; or the file's
    with these changed."""

    itl_target_ms: Annotated[float, Field(le=MAX_S)] | Literal["auto", "off"] = "auto"
    """Longest gap, in milliseconds, that prefill may cause between the tokens of running streams.

    auto: weighs the wait of prompts against the gaps of streams, also where the streams' own tokens take
    longer than the number that was set; off: always prefill_chunk tokens, however long they take."""
    selector: Literal["host", "numpy", "cuda"] = "host"
    """What chooses the slots that decode: a loop over the slots, numpy, or kernels on a CUDA device."""
    speculation: Literal["auto", "off"] = "off"
    """Whether a few streams guess ahead from their own text, where that is expected to pay."""
    log_ticks: Path | None = None
    """Write one JSON line per tick to this file."""
    log_prompts: bool = False
    """Show the beginning of each prompt in the feed of ticks; anyone with a key can read it there."""

    limits: LimitSettings = LimitSettings()
    llama: LlamaSettings = LlamaSettings()
    kept: KeptSettings = KeptSettings()
    processes: ProcessSettings = ProcessSettings()
    api: ApiSettings = ApiSettings()
    server: ServerSettings = ServerSettings()

    @model_validator(mode="before")
    @classmethod
    def _grouped(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Put each value into its group. Refuses unknown names, which would be ignored in silence."""
        grouped: dict[str, Any] = {}
        for name, raw in values.items():
            if name not in PLACES:
                raise ValueError(f"{name}: {no_such_setting(name)}")
            value = _meant(name, raw)
            if isinstance(value, str | Path):
                if not is_text(str(value)):
                    raise ValueError(f"{name}: must be text without null characters")
                if len(str(value)) > MAX_WORD:
                    raise ValueError(f"{name}: must not be longer than {MAX_WORD:,} characters")
                if name in _PATHS:
                    value = _at_home(name, Path(value))
            group = PLACES[name]
            (grouped.setdefault(group, {}) if group else grouped)[name] = value
        return grouped

    @model_serializer(mode="wrap")
    def _flat(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return names and values without the secrets."""
        flat: dict[str, Any] = {}
        for name, value in dump(self).items():
            flat |= value if name in GROUPS else {name: value}
        return {name: value for name, value in flat.items() if name not in SECRETS}

    @field_validator("engines", mode="before")
    @classmethod
    def _have_settings(cls, value: Any) -> Any:
        """Allow an engine without settings of its own, which YAML reads as null."""
        return {name: own or {} for name, own in value.items()} if isinstance(value, dict) else value

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

    @model_validator(mode="after")
    def _fits_together(self) -> EngineSettings:
        limits, llama, processes = self.limits, self.llama, self.processes
        if isinstance(self.itl_target_ms, float | int) and self.itl_target_ms <= 0:
            raise ValueError(f"itl_target_ms: must be above 0, auto or off, got {self.itl_target_ms:g}")
        for name in self.adapters:
            if name in self.names or name != name.strip():
                raise ValueError(
                    f"adapters: {name!r} cannot name an adapter: it is one of the model's names, "
                    "or begins or ends with a space"
                )
        if llama.kv_cells is not None and llama.kv == "split":
            raise ValueError("kv_cells: a split cache has n_slots * n_ctx cells; use kv: unified")
        n_cells, n_ctx = llama.kv_cells, llama.n_ctx
        n_slots = DEFAULT_SLOTS if limits.n_slots == "auto" else limits.n_slots
        if n_ctx != "auto" and n_cells is not None and n_cells > n_slots * n_ctx:
            raise ValueError(f"kv_cells: {n_cells} is more than n_slots * n_ctx, the most that slots can use")
        if self.kept.disk_cache_dir is not None and not (self.kept.host_cache_mib and limits.min_prefix):
            raise ValueError(
                "disk_cache_dir: needs host memory, so host_cache_mib and min_prefix must be above 0"
            )
        if self.api.data_dir is not None and self.api.data_url is not None:
            raise ValueError("data_url: takes the place of data_dir; set one of them")
        if llama.type_v not in PLAIN_CELL_TYPES and llama.flash_attn == "off":
            raise ValueError(f"type_v: {llama.type_v} needs flash_attn: on or auto, got off")
        for fault in llama.faults_of_devices():
            raise ValueError(fault)
        if processes.replicas > 1 and any(map(is_endpoint, llama.devices)):
            raise ValueError("devices: a worker serves one engine, and replicas are several: use `engines`")
        if processes.min_replicas is not None and processes.min_replicas > processes.replicas:
            raise ValueError(
                f"min_replicas: {processes.min_replicas} is more than replicas: {processes.replicas}"
            )
        if processes.min_replicas and processes.load == "on_demand":
            raise ValueError("min_replicas: with load: on_demand, none is loaded at the start")
        if limits.token_budget is not None and limits.n_slots != "auto" and limits.token_budget < n_slots:
            raise ValueError(f"token_budget: {limits.token_budget} cannot feed n_slots: {n_slots}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which clients may ask for the model, its own first."""
        return tuple(dict.fromkeys((self.model_id or _name_of(self.model), *self.model_aliases)))

    @property
    def itl_target_s(self) -> float | Literal["auto"] | None:
        """The target as the pacer takes it; None for none."""
        if isinstance(self.itl_target_ms, str):
            return "auto" if self.itl_target_ms == "auto" else None
        return self.itl_target_ms / 1000

    def sampling(self, advised: SamplingParams) -> SamplingParams:
        """Return the defaults of requests, given what the model's file advises."""
        if isinstance(self.default_sampling, str):
            return advised if self.default_sampling == "model" else NEUTRAL
        return tuned(advised, self.default_sampling)

    def values(self) -> dict[str, Any]:
        """Return all by their flat names, the secrets among them."""
        return {
            name: getattr(getattr(self, group) if group else self, name) for name, group in PLACES.items()
        }

    def replaced(self, **values: Any) -> Self:
        """Return these settings with other values, or whole groups, which are not checked again."""
        update: dict[str, Any] = {}
        for name, value in values.items():
            if group := PLACES.get(name):
                update[group] = replace(update.get(group, getattr(self, group)), **{name: value})
            else:
                update[name] = value
        return self.model_copy(update=update)


GROUPS: Final = {
    n: f.annotation for n, f in EngineSettings.model_fields.items() if is_dataclass(f.annotation)
}
"""The groups by their names."""
PLACES: Final[Mapping[str, str]] = {
    **{name: "" for name in EngineSettings.model_fields if name not in GROUPS},
    **{setting.name: group for group, kind in GROUPS.items() for setting in fields(kind)},
}
"""In which group each setting is; "" where it is in none."""
SECRETS: Final = {setting.name for kind in GROUPS.values() for setting in fields(kind) if not setting.repr}
"""Never shown."""


def no_such_setting(name: str, *others: str) -> str:
    """Say so, with what may have been meant: a setting, or one of some other names."""
    near = get_close_matches(name, [*PLACES, *others], n=1)
    return "there is no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _holds(hint: Any, *kinds: Any) -> bool:
    """Whether a type is, or has among its members, one of some types or literals."""
    return hint in kinds or get_origin(hint) in kinds or any(_holds(part, *kinds) for part in get_args(hint))


_HINTS = {
    name: hint
    for kind in (EngineSettings, *GROUPS.values())
    for name, hint in get_type_hints(kind, include_extras=True).items()
}
_SWITCHES = {name for name in PLACES if _holds(_HINTS[name], "off")}
_LISTS = {name for name in PLACES if _holds(_HINTS[name], tuple)}
_PATHS = {name for name in PLACES if _holds(_HINTS[name], Path)}
MAPPINGS: Final = {name for name in PLACES if _holds(_HINTS[name], dict)}
"""Settings that may be mappings, which the environment has as JSON."""


def _meant(name: str, value: Any) -> Any:
    """Undo YAML, which reads a bare `off` as a boolean, and read `a,b` as the list that it is elsewhere."""
    if name in _SWITCHES and isinstance(value, bool):
        return "on" if value else "off"
    if name in _LISTS and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip()) or ("",)
    return value


def _at_home(name: str, path: Path) -> Path:
    """Return a path whose `~` is a home folder: in a file, and in `--set`, no shell has expanded it."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{name}: {path} is in the home folder of no user here") from None


def _name_of(reference: str) -> str:
    """Return the name of a model that was given none: the last word of its reference, without `.gguf`."""
    if reference.startswith("builtin:"):
        name = reference.removeprefix("builtin:")
        return "scripted" if name.startswith("scripted:") else name
    place = reference if reference.endswith(".gguf") else reference.rsplit("@", 1)[0]
    return place.rpartition("/")[2].removesuffix(".gguf")
