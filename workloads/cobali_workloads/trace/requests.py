"""The lives of requests as slices: where they waited, which slot they had, what was computed there. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from cobali_ray.core.views.stats import DECODE, PREFILL
from cobali_workloads.trace.recording import Json
from cobali_workloads.trace.shapes import Slice, in_order

_SHOWN = (
    "request_id", "state", "n_prompt", "n_cached", "cached_from", "n_output", "n_preempted", "finish_reason",
    "error", "prompt", "tenant", "priority", "attempt", "n_said",
)  # fmt: skip


def waits(requests: Iterable[Json], now_s: float) -> list[Slice]:
    """Return each time a request waited for a slot, the times after a preemption included."""
    slices = []
    for number, request in enumerate(requests):
        since_s, stays = request["arrived_s"], _stays(request)
        for n, (_, assigned_s, left_s) in enumerate(stays):
            name = "queued again" if n else _begins(request)
            journey = None if n else _came(request)
            slices.append(
                Slice(since_s, assigned_s, name, _args(request), flow=_flow(number, n), journey=journey)
            )
            since_s = left_s
        if len(stays) <= request["n_preempted"]:  # it left its last slot to wait, or never had one
            name = "queued again" if stays else _begins(request)
            journey = None if stays else _came(request)
            slices.append(Slice(since_s, _until(request, now_s), name, _args(request), journey=journey))
    return slices


def lanes(slices: Iterable[Slice]) -> list[tuple[Slice, ...]]:
    """Spread slices over as few rows as need be, so that those of one row do not overlap."""
    rows: list[list[Slice]] = []
    for item in sorted(slices, key=lambda item: item.start_s):
        free = next((row for row in rows if row[-1].end_s <= item.start_s), None)
        if free is None:
            rows.append(free := [])
        free.append(item)
    return [tuple(row) for row in rows]


def slot_rows(
    requests: Iterable[Json], ticks: Sequence[Json], now_s: float, recorded_ids: Collection[str] = ()
) -> dict[int, tuple[Slice, ...]]:
    """Return who had each slot and when; inside, prefill with its chunks, and decode.

    From its last stay an arrow leads to where a request went on, if that name is in `recorded_ids`.
    """
    chunks, decodes = _chunks(ticks), _decodes(ticks)
    rows: dict[int, list[Slice]] = defaultdict(list)
    for number, request in enumerate(requests):
        for n, (slot_id, since_s, left_s) in enumerate(stays := _stays(request)):
            until_s = _until(request, now_s) if left_s is None else left_s
            phases = _phases(request, since_s, until_s, chunks[slot_id], decodes[slot_id])
            next_id = _goes(request) if n == len(stays) - 1 and _goes(request) in recorded_ids else None
            rows[slot_id].append(
                Slice(
                    since_s, until_s, request["request_id"], _args(request), phases, _flow(number, n), next_id
                )
            )
    return {slot_id: in_order(rows[slot_id]) for slot_id in sorted(rows)}


def _phases(
    request: Json, since_s: float, until_s: float, row: Sequence[Slice], decodes: Sequence[float]
) -> tuple[Slice, ...]:
    """Return what was done in one stay, from the chunks and the moments of decode passes of its slot."""
    first = bisect_left(row, since_s, key=lambda chunk: chunk.start_s)
    inside = row[first : bisect_left(row, until_s, key=lambda chunk: chunk.start_s)]
    prefill, token_s = "prefill again" if request.get("n_said") else "prefill", request["first_token_s"]
    if token_s is not None and token_s < since_s:  # preempted: what was said before is computed again
        decoded = decodes[bisect_left(decodes, since_s) : bisect_left(decodes, until_s)]
        token_s = decoded[0] if decoded else None
        if decoded and not inside:  # it was computed before the recording began
            token_s = since_s
        prefill = "prefill again"
    if token_s is None or token_s >= until_s:
        return (Slice(since_s, until_s, prefill, children=in_order(inside, since_s, until_s)),)
    return (
        Slice(since_s, token_s, prefill, children=in_order(inside, since_s, token_s)),
        Slice(token_s, until_s, "decode"),
    )


def _chunks(ticks: Iterable[Json]) -> dict[int, list[Slice]]:
    """Return the prompt chunks of each slot, as long as the forward pass that computed them."""
    rows: dict[int, list[Slice]] = defaultdict(list)
    for tick in ticks:
        start_s = tick["started_s"] + tick["plan_s"]
        for slot_id, start, length, kind in tick["spans"]:
            if kind == PREFILL:
                args = {"tick_id": tick["tick_id"], "n_tokens": length}
                name = f"{start}..{start + length}"
                rows[slot_id].append(Slice(start_s, start_s + tick["forward_s"], name, args))
    return rows


def _decodes(ticks: Iterable[Json]) -> dict[int, list[float]]:
    """Return when the forward passes began that decoded for each slot."""
    moments: dict[int, list[float]] = defaultdict(list)
    for tick in ticks:
        for slot_id, _, _, kind in tick["spans"]:
            if kind == DECODE:
                moments[slot_id].append(tick["started_s"] + tick["plan_s"])
    return moments


def _stays(request: Json) -> Sequence[tuple[int, float, float | None]]:
    stays: Sequence[tuple[int, float, float | None]] = request["stays"]
    return stays


def _until(request: Json, now_s: float) -> float:
    ended_s: float | None = request["ended_s"]
    return now_s if ended_s is None else ended_s


def _args(request: Json) -> dict[str, Any]:
    args = {name: request[name] for name in _SHOWN if request.get(name) is not None}
    if not request.get("attempt"):
        args.pop("attempt", None)
        args.pop("n_said", None)
    if request["first_token_s"] is not None:
        received_s = request.get("received_s")
        begun_s = request["arrived_s"] if received_s is None else received_s
        args["ttft_s"] = round(request["first_token_s"] - begun_s, 6)
    return args


def _begins(request: Json) -> str:
    """Return what its first wait is called: it may have begun at an engine that is gone."""
    return "continued" if request.get("attempt") else "queued"


def _came(request: Json) -> str | None:
    """Return the name of the way here of a request that began elsewhere."""
    name: str = request["request_id"]
    return name if request.get("attempt") else None


def _goes(request: Json) -> str:
    """Return a request's name at its next engine, if there is one; see core/dispatch/request.py."""
    attempt, name = request.get("attempt", 0), request["request_id"]
    return f"{name.removesuffix(f'~{attempt}')}~{attempt + 1}"


def _flow(number: int, n: int) -> int:
    """Return the number of the arrow from the n-th wait of a request to the slot it got."""
    return number << 16 | n + 1
