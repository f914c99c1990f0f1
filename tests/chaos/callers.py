"""Clients that have a tool called at length beside an engine that dies: each call must be whole and valid."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2

from tests.chaos.crowd import HUNG_S, Pid, Report, befall, chunks, kill

CHAT = "/v1/chat/completions"
CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Paris", "Tokyo")
N_CITIES = 40
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in some cities",
        "parameters": {
            "type": "object",
            "properties": {
                "cities": {
                    "type": "array",
                    "items": {"type": "string", "enum": CITIES},
                    "minItems": N_CITIES,
                    "maxItems": N_CITIES,
                }
            },
            "required": ["cities"],
            "additionalProperties": False,
        },
    },
}


async def call(http: httpx2.AsyncClient, number: int, report: Report) -> None:
    """Have the tool called once, and enter in the report what is wrong with the call."""
    body = {
        "messages": [{"role": "user", "content": f"What is the weather in {CITIES[number % len(CITIES)]}?"}],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0.8,
        "seed": number,
        "stream": True,
    }
    calls: dict[int, dict[str, Any]] = {}
    reason, flaws, last_s, longest_s = None, [], time.monotonic(), 0.0
    try:
        async for chunk in chunks(http, CHAT, body, flaws):
            longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
            for choice in chunk["choices"]:
                reason = choice["finish_reason"] or reason
                for delta in choice["delta"].get("tool_calls", ()):
                    flaws += _join(calls.setdefault(delta["index"], {}), delta)
    except httpx2.HTTPError as error:
        flaws.append(repr(error))
    report.n_answers += 1
    report.pauses_s.append(longest_s)
    report.wrong += [f"caller {number}: {flaw}" for flaw in flaws + _judged(calls, reason)]


async def endure_calls(url: str, pid: Pid, *, n_callers: int, every_s: float, n_faults: int) -> Report:
    """Keep tools being called while the engine is killed again and again."""
    report = Report()
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits) as http:

        async def ask(number: int) -> None:
            await call(http, number, report)

        await ask(0)
        await befall(http, pid, kill, ask, report, n_streams=n_callers, every_s=every_s, n_faults=n_faults)
        text = (await http.get("/metrics")).text.splitlines()
    report.n_continued = sum(
        float(line.rsplit(" ", 1)[1]) for line in text if line.startswith("cobali_continued_total")
    )
    return report


def _join(known: dict[str, Any], delta: dict[str, Any]) -> list[str]:
    """Add what a chunk says of a call; return what is wrong with that."""
    said = delta.get("function", {})
    again = [name for name, value in (("id", delta.get("id")), ("name", said.get("name"))) if value]
    flaws = [f"its {name} came twice" for name in again if name in known]
    known |= {name: delta[name] if name == "id" else said[name] for name in again}
    known["arguments"] = known.get("arguments", "") + (said.get("arguments") or "")
    return flaws


def _judged(calls: dict[int, dict[str, Any]], reason: str | None) -> list[str]:
    """Return what is wrong with calls that have ended."""
    if reason != "tool_calls" or list(calls) != [0]:
        return [f"{list(calls)} calls, finish reason {reason}"]
    try:
        cities = json.loads(calls[0]["arguments"])["cities"]
    except (ValueError, KeyError, TypeError) as error:
        return [f"{error!r} in {calls[0]['arguments'][-80:]}"]
    whole = len(cities) == N_CITIES and set(cities) <= set(CITIES)
    return [] if whole and calls[0].get("id") and calls[0].get("name") == "get_weather" else [str(calls)]
