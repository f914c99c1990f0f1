"""The strict reader of load shape files (workloads/*.yaml)."""

from __future__ import annotations

import math
from typing import Any

import yaml

from cobali_ray.errors import ConfigError
from cobali_workloads.load.shape import (
    Conversations,
    Fixed,
    Intruder,
    Length,
    LoadShape,
    Lognormal,
    Prefix,
    PromptsFile,
    Repeat,
    Slo,
    TraceFile,
    Uniform,
)


def load_shape(text: str) -> LoadShape:
    """Read a load shape from YAML. Anything unknown, missing or out of range: ConfigError with the key."""
    try:
        values = yaml.load(text, _UniqueKeys)  # noqa: S506 - a SafeLoader, made stricter below
    except yaml.YAMLError as error:
        raise ConfigError(
            "workload", f"is not YAML that can be read: {' '.join(str(error).split())}"
        ) from None
    top = _Section(values, "")
    kind = top.choice("kind", ("open", "closed"))
    loop: dict[str, Any]
    if kind == "open" and "trace" in top:
        trace = _trace(top.section("trace"))
        loop = {"kind": "open", "prompt": trace, "output": trace}
    elif kind == "open":
        loop = {
            "kind": "open",
            "rate_rps": top.real("rate_rps"),
            "burstiness": top.real("burstiness"),
            "n_requests": top.whole("n_requests"),
        }
    else:
        loop = {
            "kind": "closed",
            "concurrency": top.wholes("concurrency"),
            "requests_per_client": top.whole("requests_per_client"),
            "turns": _turns(top.section("turns")) if "turns" in top else None,
        }
    if "prompt" not in loop:
        loop |= {"prompt": _prompt(top), "output": _length(top.section("output_tokens"))}
    shape = LoadShape(
        name=top.text("name"),
        description=top.text("description"),
        seed=top.whole("seed", low=0),
        ignore_eos=top.flag("ignore_eos"),
        warmup_requests=top.whole("warmup_requests", low=0),
        slo=_slo(top.section("slo")),
        prefix=_prefix(top.section("prefix")) if "prefix" in top else None,
        intruder=_intruder(top.section("intruder")) if "intruder" in top else None,
        **loop,
    )
    top.done()
    if shape.prefix and isinstance(shape.prompt, PromptsFile | Repeat | TraceFile):
        raise ConfigError("prefix", "needs prompt_tokens; a given text has no room for a prefix")
    return shape


class _Section:
    """One mapping of the file. Every key is taken once, and `done` complains about what is left."""

    def __init__(self, values: Any, path: str) -> None:
        if not isinstance(values, dict):
            raise ConfigError(path or "workload", f"must be a mapping, got {values!r}")
        self._left, self._path = dict(values), path

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def key(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        if name not in self._left:
            raise ConfigError(self.key(name), "is missing")
        return self._left.pop(name)

    def wrong(self, name: str, wanted: str, value: Any) -> ConfigError:
        return ConfigError(self.key(name), f"must be {wanted}, got {value!r}")

    def whole(self, name: str, low: int = 1) -> int:
        value = self.take(name)
        if not _is_whole(value, low):
            raise self.wrong(name, f"a whole number of at least {low}", value)
        return int(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        value = self.take(name)
        if not (isinstance(value, list) and value and all(_is_whole(v, 1) for v in value)):
            raise self.wrong(name, "a list of whole numbers of at least 1", value)
        return tuple(value)

    def real(self, name: str) -> float:
        value = self.take(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value > 0):
            raise self.wrong(name, "a finite number above 0", value)
        return float(value)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not (isinstance(value, str) and value):
            raise self.wrong(name, "a text that is not empty", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.take(name)
        if value not in allowed:
            raise self.wrong(name, "one of " + ", ".join(allowed), value)
        return str(value)

    def section(self, name: str) -> _Section:
        return _Section(self.take(name), self.key(name))

    def done(self) -> None:
        for name in self._left:
            raise ConfigError(self.key(str(name)), "is unknown, or does not belong to this kind of shape")


def _is_whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _prompt(top: _Section) -> Length | PromptsFile | Repeat:
    given = [name for name in ("prompt_tokens", "prompts_file", "prompt_repeat") if name in top]
    if len(given) != 1:
        raise ConfigError("prompt_tokens", "give exactly one of prompt_tokens, prompts_file, prompt_repeat")
    if given == ["prompts_file"]:
        return PromptsFile(path=top.text("prompts_file"))
    if given == ["prompt_tokens"]:
        return _length(top.section("prompt_tokens"))
    section = top.section("prompt_repeat")
    repeat = Repeat(text=section.text("text"), n_times=section.whole("n_times"))
    section.done()
    return repeat


def _length(section: _Section) -> Length:
    dist = section.choice("dist", ("fixed", "uniform", "lognormal"))
    length: Length
    if dist == "fixed":
        length = Fixed(tokens=section.whole("tokens"))
    elif dist == "uniform":
        low = section.whole("low")
        length = Uniform(low=low, high=section.whole("high", low))
    else:
        low = section.whole("low")
        median = section.whole("median", low)
        high = section.whole("high", median)
        length = Lognormal(median=median, sigma=section.real("sigma"), low=low, high=high)
    section.done()
    return length


def _trace(section: _Section) -> TraceFile:
    trace = TraceFile(path=section.text("file"), speed=section.real("speed") if "speed" in section else 1.0)
    section.done()
    return trace


def _turns(section: _Section) -> Conversations:
    turns = Conversations(n_turns=section.whole("n_turns", 2))
    section.done()
    return turns


def _prefix(section: _Section) -> Prefix:
    prefix = Prefix(
        tokens=section.whole("tokens"),
        n_groups=section.whole("n_groups"),
        fresh="fresh" in section and section.flag("fresh"),
    )
    section.done()
    return prefix


def _intruder(section: _Section) -> Intruder:
    intruder = Intruder(
        every_s=section.real("every_s"),
        prompt_tokens=section.whole("prompt_tokens"),
        output_tokens=section.whole("output_tokens"),
    )
    section.done()
    return intruder


def _slo(section: _Section) -> Slo:
    slo = Slo(**{name: section.real(name) for name in ("ttft_s", "tpot_s", "itl_s") if name in section})
    section.done()
    if slo == Slo():
        raise ConfigError("slo", "names no target; give at least one of ttft_s, tpot_s, itl_s")
    return slo


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets the last of two equal keys win without a word; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(name, "is given twice")
        return super().construct_mapping(node, deep)
