"""The strict reader of load shape files (workloads/*.yaml)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cobali_ray.errors import ConfigError
from cobali_workloads.load.shape import (
    Conversations,
    Count,
    Flag,
    Intruder,
    Length,
    LoadShape,
    Positive,
    Prefix,
    PromptsFile,
    Repeat,
    Slo,
    Text,
    TraceFile,
)

PROBLEMS = {
    "missing": "is missing",
    "extra_forbidden": "is unknown, or does not belong to this kind of shape",
    "unexpected_keyword_argument": "is unknown",
}
"""What an error says of a key, by pydantic's type of it; for other types, pydantic's own message."""


class _ShapeFile(BaseModel):
    """The keys of all shapes."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["open", "closed"]
    name: Text
    description: Text
    seed: Annotated[int, Field(ge=0, strict=True)]
    ignore_eos: Flag
    warmup_requests: Annotated[int, Field(ge=0, strict=True)]
    slo: Slo
    prefix: Prefix | None = None
    intruder: Intruder | None = None


class _TracedFile(_ShapeFile):
    trace: TraceFile


class _DrawnFile(_ShapeFile):
    output_tokens: Length
    prompt_tokens: Length | None = None
    prompts_file: Text | None = None
    prompt_repeat: Repeat | None = None


class _OpenFile(_DrawnFile):
    rate_rps: Positive
    burstiness: Positive
    n_requests: Count


class _ClosedFile(_DrawnFile):
    concurrency: Annotated[tuple[Count, ...], Field(min_length=1)]
    requests_per_client: Count
    turns: Conversations | None = None


def load_shape(text: str) -> LoadShape:
    """Read a load shape from YAML. Anything unknown, missing or out of range: ConfigError with the key."""
    try:
        values = yaml.load(text, _UniqueKeys)  # noqa: S506 - a SafeLoader, made stricter below
    except yaml.YAMLError as error:
        raise ConfigError(
            "workload", f"is not YAML that can be read: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError("workload", f"must be a mapping, got {values!r}")
    is_open = values.get("kind") != "closed"
    try:
        if is_open and "trace" in values:
            traced = dict(_TracedFile.model_validate(values))
            trace = traced.pop("trace")
            return _checked(LoadShape(**traced, prompt=trace, output=trace))
        drawn = dict((_OpenFile if is_open else _ClosedFile).model_validate(values))
    except ValidationError as error:
        raise _first(error) from None
    file, tokens, repeat = (drawn.pop(name) for name in ("prompts_file", "prompt_tokens", "prompt_repeat"))
    sources = [source for source in (tokens, file and PromptsFile(path=file), repeat) if source is not None]
    if len(sources) != 1:
        raise ConfigError("prompt_tokens", "give exactly one of prompt_tokens, prompts_file, prompt_repeat")
    output = drawn.pop("output_tokens")
    for name, length in (("prompt_tokens", tokens), ("output_tokens", output)):
        _check_order(name, length)
    return _checked(LoadShape(**drawn, prompt=sources[0], output=output))


def _first(error: ValidationError) -> ConfigError:
    detail = error.errors(include_url=False, include_context=False)[0]
    kind, path = detail["type"], [step for step in detail["loc"] if isinstance(step, str)]
    if path[0] in {"prompt_tokens", "output_tokens"}:
        del path[1:2]  # which distribution it is
        path += ["dist"] if kind.startswith("union_tag") else []
    problem = PROBLEMS.get(kind) or f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, got {detail['input']!r}"
    return ConfigError(".".join(path), problem)


def _check_order(name: str, length: Length | None) -> None:
    bounds = [(part, getattr(length, part, None)) for part in ("low", "median", "high")]
    for (_, least), (part, value) in pairwise([(part, n) for part, n in bounds if n is not None]):
        if value < least:
            raise ConfigError(f"{name}.{part}", f"must be at least {least}, got {value}")


def _checked(shape: LoadShape) -> LoadShape:
    if shape.slo == Slo():
        raise ConfigError("slo", "names no target; give at least one of ttft_s, tpot_s, itl_s")
    if shape.prefix and isinstance(shape.prompt, PromptsFile | Repeat | TraceFile):
        raise ConfigError("prefix", "needs prompt_tokens; a given text has no room for a prefix")
    return shape


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets the last of two equal keys win without a word; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(name, "is given twice")
        return super().construct_mapping(node, deep)
