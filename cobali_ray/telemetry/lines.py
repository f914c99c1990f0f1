"""Events as lines for a terminal: what a person wants to see of each, in the width there is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from rich.text import Text

from cobali_ray.telemetry.names import ONLY_ENGINE

Event = Mapping[str, Any]
"""A log line as a dict: `event` names it, `level` and `timestamp` are there, the rest are its facts."""

GAP: Final = "  "
_ROUTES: Final = MappingProxyType({"unmatched": "(no such path)"})
ROUTE_WIDTH, MODEL_WIDTH, TOKENS_WIDTH, TTFT_WIDTH = 25, 8, 18, 12
STEP_WIDTH: Final = 24
COLOURS: Final = MappingProxyType({"warning": "yellow", "error": "red", "critical": "red"})
NOT_FACTS: Final = frozenset({"event", "level", "timestamp", "exception", "cause", "engine_id", "request_id"})


def readable(event: Event, width: int) -> Text | None:
    """Return the line for an event; None for one that is of no interest to whoever watches.

    A line of a request is never wider than `width`: fields are left out from the right.
    """
    name = event.get("event")
    if name == "http_request":
        return request_line(event, width)
    if name == "start_step":
        return Text(f"  {event['step']:<{STEP_WIDTH}}{event['seconds']:6.1f} s")
    words = _SENTENCES.get(str(name), _facts)(event)
    if words is None:
        return None
    colour = COLOURS.get(str(event.get("level")), "")
    return Text.assemble((_time(event), "dim"), GAP, (_plain(words), colour))


def request_line(event: Event, width: int) -> Text:
    """Return the line of a request that has ended, most important fields first.

    In columns where all of them fit, else close together, and then as many as fit.
    """
    fields, gap = _fields(event), Text(GAP, no_wrap=True, overflow="ellipsis")
    line = gap.join(Text(text.ljust(least), style) for text, style, least in fields)
    line.rstrip()
    close = [Text(text, style) for text, style, _ in fields]
    while len(line) > width and close:
        line = gap.join(close)
        close.pop()
    return line


def more_line(n_more: int, statuses: Mapping[Any, int]) -> Text:
    """Return the line for what was left out of a second that had too much."""
    of = ", ".join(f"{n:,} x {status}" for status, n in sorted(statuses.items(), key=lambda item: -item[1]))
    return Text(f"... and {n_more:,} more in this second{f' ({of})' if of else ''}", style="dim")


def _fields(event: Event) -> list[tuple[str, str, int]]:
    """Return text, style and least width of each field that the request has."""
    status, route = event.get("status"), str(event.get("route"))
    fields = [
        (_time(event), "dim", 8),
        (str(status or "-"), _status_style(status), 3),
        (f"{event.get('method') or ''} {_ROUTES.get(route, route)}".strip(), "", ROUTE_WIDTH),
    ]
    if fault := event.get("error") or ("client left" if event.get("cancelled") else None):
        fields.append((str(fault), "yellow" if event.get("cancelled") else _status_style(status), 0))
    if event.get("model"):
        fields.append((str(event["model"]), "cyan", MODEL_WIDTH))
    if tokens := _tokens(event):
        fields.append((tokens, "", TOKENS_WIDTH))
    if event.get("ttft_s") is not None:
        fields.append((f"TTFT {seconds(event['ttft_s'])}", "", TTFT_WIDTH))
    if event.get("tokens_per_second"):
        fields.append((f"{event['tokens_per_second']:.0f} tok/s", "bold", 9))
    elif event.get("ttft_s") is None and event.get("http_s") is not None:
        fields.append((f"took {seconds(event['http_s'])}", "", 0))
    if event.get("tenant"):
        fields.append((str(event["tenant"]), "magenta", 0))
    return [(_plain(text), style, least) for text, style, least in fields]


def _tokens(event: Event) -> str:
    if event.get("n_prompt") is None:
        return ""
    cached = f" ({event['n_cached']:,} cached)" if event.get("n_cached") else ""
    output = f" -> {event['n_output']:,}" if event.get("n_output") is not None else ""
    return f"{event['n_prompt']:,}{cached}{output} tok"


def seconds(value_s: float) -> str:
    """Return a duration as one says it: in ms below a second."""
    return f"{value_s * 1000:.0f} ms" if value_s < 1 else f"{value_s:,.1f} s"


def _status_style(status: Any) -> str:
    if not isinstance(status, int) or status >= 500:
        return "red"
    return "yellow" if status >= 400 else "green"


def _time(event: Event) -> str:
    try:
        return datetime.fromisoformat(str(event["timestamp"])).astimezone().strftime("%H:%M:%S")
    except (KeyError, ValueError):
        return "--:--:--"


def _plain(text: str) -> str:
    """Return a text without what could move the cursor or change colours."""
    return "".join(c if c.isprintable() else " " for c in text)


# -- what else may happen, in words


def _engine(event: Event) -> str:
    engine = event.get("engine_id", ONLY_ENGINE)
    return "The engine" if engine == ONLY_ENGINE else f"Engine {engine}"


def _facts(event: Event) -> str | None:
    """Return the line of an event without a sentence of its own: only of a warning, or worse."""
    if event.get("level") not in COLOURS:
        return None
    what = str(event.get("event")).replace("_", " ")
    facts = ", ".join(f"{name} {value}" for name, value in event.items() if name not in NOT_FACTS)
    about = "" if event.get("engine_id", ONLY_ENGINE) == ONLY_ENGINE else f"engine {event['engine_id']}: "
    return f"{about}{what}{f': {facts}' if facts else ''}"


def _away(event: Event) -> str:
    if event.get("status") == "stalled":
        return f"{_engine(event)} does not answer; its requests wait."
    what = f"lost {event['lost']}" if event.get("lost") else "died"
    return f"{_engine(event)} {what} and is being restarted; its requests wait and then continue."


def _died(event: Event) -> str:
    how = f"signal {-event['status']}" if event["status"] < 0 else f"exit status {event['status']}"
    return (
        f"Ray's {event['part']} ended ({how}), and the server ends with it; start it again. "
        f"Its log is in {event['logs']}"
    )


def _failed(event: Event) -> str:
    cause = str(event.get("cause") or event.get("exception") or "").strip().splitlines()
    return f"A request failed: {cause[-1] if cause else 'unknown'} (its traceback is in the log)"


def _draining(event: Event) -> str:
    n = event.get("n_requests")
    if not n:
        return "Stopping ... (Ctrl-C again to skip)"
    what = f"Waiting up to {event['limit_s']:.0f} s for {n} request{'' if n == 1 else 's'} to finish"
    return f"{what} ... (Ctrl-C again to skip)"


_SENTENCES: Mapping[str, Callable[[Event], str | None]] = MappingProxyType(
    {
        "engine_away": _away,
        "engine_back": lambda e: f"{_engine(e)} is back after {e['away_s']:.1f} s.",
        "engine_given_up": lambda e: (
            f"{_engine(e)} was silent for {e['silent_s']:.0f} s and is being replaced."
        ),
        "engine_open": lambda e: f"{_engine(e)} has loaded {e['model']}.",
        "engine_gone": lambda _: None,  # said of each of its requests; engine_away says it once
        "engine_not_there": lambda _: None,  # a start, or engine_away
        "let_go": lambda e: f"{_engine(e)} unloaded its model after {e['idle_s']:.0f} s without a request.",
        "made_room": lambda e: f"{_engine(e)} was unloaded to make room for {e['wanted']}.",
        "grew": lambda e: f"{_engine(e)} was loaded, because requests had to wait.",
        "request_failed": _failed,
        "ignored_fields": lambda e: f"A request has fields that the server ignores: {e['fields']}",
        "api_keys_reloaded": lambda e: f"The API keys were read again; there are {e['n_keys']}.",
        "key_refused": lambda e: (
            f"{e['n_requests']:,} request{'' if e['n_requests'] == 1 else 's'} from {e['address']} refused: "
            f"{'wrong' if e['key'] == 'wrong' else 'no'} API key."
        ),
        "settings_read": lambda e: (
            f"The settings were read again; changed: {', '.join(e['changed']) or 'nothing'}."
        ),
        "settings_kept": lambda e: f"The settings stay as they were: {e['error']}",
        "node_died": _died,
        "notice": lambda e: str(e["detail"]),
        "broken_off": lambda _: "Stopping before it was ready.",
        "draining": _draining,
        "drain_skipped": lambda _: "Not waiting for them.",
        "stopped": lambda e: f"Stopped in {e['seconds']:.1f} s.",
        "start_failed": lambda _: None,  # the command says it
    }
)
