"""What `cobali serve` shows when it is ready, or with --check would be: where, and what it serves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cobali_ray import __version__

LABEL: Final = 10
UNITS: Final = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def banner(facts: Mapping[str, Any], width: int, *, command: str = "cobali") -> RenderableType:
    """Return the facts of the event `ready`, with those of models, for a terminal this wide."""
    head = Text.assemble((f"cobali_ray {__version__}", "bold"), f" is ready after {facts['seconds']:.1f} s")
    lines: list[RenderableType] = [
        Text(),
        head,
        Text(),
        _line("Page", f"{facts['url']}/", style="bold cyan"),
        _line("Chat", f"{command} chat --url {facts['url']}"),
        _line("API", f"{facts['url']}/v1"),
        _line("", f"{facts['url']}/docs describes it", style="dim"),
    ]
    lines += _served(facts)
    lines += [_line("Keys", _keys(facts)), _line("Logs", str(facts["logs"])), Text()]
    lines.append(Text("Ctrl-C stops it.", style="dim"))
    return _folded(lines, width)


def plan(facts: Mapping[str, Any], width: int) -> RenderableType:
    """Return what a server would be with these facts: those of `banner`, `memory` and `kept_in`."""
    lines: list[RenderableType] = [Text("This would start:"), _line("Page", f"{facts['url']}/")]
    lines += _served(facts)
    if facts["memory"]:
        lines.append(_line("Memory", facts["memory"]))
    if facts["kept_in"]:
        lines.append(_line("Kept in", facts["kept_in"]))
    return _folded([*lines, _line("Keys", _keys(facts))], width)


def _served(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    models: Sequence[Mapping[str, Any]] = facts["models"]
    if facts["everywhere"]:
        yield _line("Network", "all addresses of this machine")
    if len(models) == 1:
        yield from (_line(label, value) for label, value in _of_one(models[0]))
    else:
        yield from (Text(), Padding(_table(models), (0, 0, 0, 2)), Text())


def _folded(lines: Sequence[RenderableType], width: int) -> RenderableType:
    for line in lines:
        if isinstance(line, Text) and len(line) > width:  # a path is to be copied: it wraps, and is whole
            line.overflow = "fold"
    return Group(*lines)


def size_of(model: Mapping[str, Any]) -> str:
    parts = [_short(model.get("parameters"), ""), model.get("quant"), _short(model.get("size_bytes"), "B")]
    return ", ".join(str(part) for part in parts if part)


def _of_one(model: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    size = size_of(model)
    yield "Model", f"{model['model']}{f'   {size}' if size else ''}"
    if model.get("file"):
        yield "", _home(model["file"])
    if "to_come" in model:
        yield "", model["to_come"]
        return
    if model.get("n_ctx") is None:
        yield "Context", "known once it is loaded, for the first request that asks for it"
        return
    names = " and ".join(model.get("autos", ()))
    auto = f", as many as memory holds ({names}: auto)" if names else ""
    yield "Context", f"{model['n_ctx']:,} tokens a request, {model['n_slots']} slots{auto}"
    yield "Runs on", str(model["runs_on"])


def _table(models: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("engine", "model", "size", "context", "slots", "runs on"):
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if name in {"context", "slots"} else "left",
        )
    for model in models:
        loaded = model.get("n_ctx") is not None
        table.add_row(
            str(model["engine_id"]),
            str(model["model"]),
            size_of(model),
            f"{model['n_ctx']:,}" if loaded else "-",
            str(model["n_slots"]) if loaded else "-",
            str(model["runs_on"]) if loaded else model.get("to_come", "loaded on demand"),
        )
    return table


def _keys(facts: Mapping[str, Any]) -> str:
    if facts["needs_key"]:
        return "needed: authorization: Bearer YOUR_KEY"
    if facts["everywhere"]:
        return "none needed, by anyone who reaches this machine (settings api_keys, api_keys_file)"
    return "none needed (settings api_keys, api_keys_file)"


def _line(label: str, value: str, style: str = "") -> Text:
    return Text.assemble("  ", (f"{label:<{LABEL}}", "dim"), (value, style))


def _short(number: float | None, unit: str) -> str:
    """Return a number with three digits or fewer, such as 4.5M; "" for none."""
    if not number:
        return ""
    for size, letter in UNITS:
        if number >= size:
            value = number / size
            scale = {"B": "G"}.get(letter, letter) if unit else letter
            return f"{value:.{0 if value >= 100 else 1}f}{f' {scale}{unit}' if unit else scale}"
    return f"{number:g}{f' {unit}' if unit else ''}"


def _home(path: str) -> str:
    try:
        return f"~/{Path(path).relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return path
