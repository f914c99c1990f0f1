"""Every query of every board, through a real Prometheus, after everything has happened once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest
from monitors import DASHBOARDS, PROGRAMS, monitors, runs
from ray.exceptions import RayError

from cobali_ray.core.request.request import Request, SamplingParams
from conftest import deployed
from tests.waiting import until

ABSENT = "no Prometheus and Alertmanager that run: `make monitoring-tools` fetches them"
pytestmark = [pytest.mark.ray, pytest.mark.skipif(not all(map(runs, PROGRAMS)), reason=ABSENT)]

TINY = {
    "model": "builtin:synthetic-tiny",
    "n_slots": 4,
    "n_ctx": 512,
    "kv_cells": 640,  # a third of what the slots could need: they preempt each other
    "prefill_chunk": 32,
    "max_queue": 6,
    "n_threads": 1,
    "pooling": "last",
    "log_level": "warning",
}
COMPLETIONS = "/v1/completions"
LONG = {"prompt": "All that can happen to a request. " * 12, "max_tokens": 300, "ignore_eos": True}
KINDS = {
    "long": LONG,  # queues, is chunked, outgrows the cache
    "same-again": LONG | {"max_tokens": 20},
    "stopped": {"prompt": "Once", "stop": list("aeiou nrst")},
    "late": LONG | {"timeout_s": 0.05},
    "broken": None,  # see `broken`
    "leaves": LONG | {"stream": True},
}
PATIENCE_S = 60.0  # a quiet machine needs 15 s for all of it
N_WORKERS = 16  # 4 slots, 6 places in the queue: some are refused
OUTCOMES = ("stop", "length", "cancelled", "deadline", "error")
QUEUE_ALERT, RESTART_ALERT = "CobaliQueueNearBound", "CobaliEngineRestarted"
ANY = dict.fromkeys(("$instance", "$engine", "$model_name", "$node"), ".+")
SLOS = {"$slo_ttft": "2", "$slo_itl": "0.1"}
VALUES = {"$__rate_interval": "60s", "$__interval": "60s", "$__range": "60s", **ANY, **SLOS}


ELSEWHERE = re.compile(r"ray_node_|cobali_disk_cache_|cobali_host_cache_evicted_")
"""GPUs, which Ray's own metrics tell, and what never happens here: the server has no disk cache."""


def targets():
    """Return (board, panel, target) of every query about what this server can do."""
    boards = {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}
    return [
        (name, panel, target)
        for name, board in boards.items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
        if not ELSEWHERE.search(target["expr"])
    ]


def filled(text):
    for variable, value in VALUES.items():
        text = text.replace(variable, value)
    return text


STATES = (
    *(f'cobali_requests_total{{outcome="{outcome}"}}' for outcome in OUTCOMES),
    'cobali_refusals_total{reason="queue_full_requests"}',
    "cobali_queue_requests",
    "cobali_preemptions_total",
    "cobali_cached_prompt_tokens_total",
    "cobali_prefill_chunk_tokens_count > 2 * cobali_request_prompt_tokens_count",  # chunks
    "changes(cobali_start_time_seconds[60s])",
)
VARIABLES = {
    "model_name": ("model", "cobali_info"),
    "instance": ("instance", 'cobali_info{model=~".+"}'),
    "node": ("node", 'cobali_info{model=~".+", instance=~".+"}'),
    "engine": ("engine", 'cobali_info{model=~".+", instance=~".+", node=~".+"}'),
}
QUERIES = sorted({filled(target["expr"]) for _, _, target in targets()})


def broken(folder):
    """Return what no door lets in: its logits become infinite, as if the model were broken."""
    sampling = SamplingParams(repetition_penalty=2)
    object.__setattr__(sampling, "repetition_penalty", 1e-40)
    return Request(
        request_id=f"broken-{uuid.uuid4().hex}",
        prompt=tuple(range(64)),
        max_tokens=1,
        sampling=sampling,
        reply_to=f"{folder}/nobody",
    )


async def worker(server, folder, number, stop):
    """Ask one kind of request after the other, whatever comes of it."""
    kinds = list(KINDS.values())
    async with server.http() as http:
        while not stop.is_set():
            body = kinds[number % len(kinds)]
            number += 1
            if body is None:
                with contextlib.suppress(RayError):  # the engine was killed
                    await server.submit(broken(folder))
            elif "stream" in body:
                async with http.stream("POST", COMPLETIONS, json=body) as response:
                    await anext(response.aiter_lines(), None)  # and off
            else:
                response = await http.post(COMPLETIONS, json=body)
                if response.status_code == 429:
                    await http.get("/health")  # let others go first


def moved(series):
    """Say whether there ever was a value, finite and not 0."""
    values = [float(value) for one in series for _, value in one["values"]]
    return any(math.isfinite(value) and value for value in values)


@dataclass
class Seen:
    """What Prometheus and the inbox of Alertmanager saw. Answers are lists of series, by query."""

    inbox: object
    busy: dict = field(default_factory=dict)
    """Under load, from the first to the last scrape."""
    after: dict = field(default_factory=dict)
    """The same when all was over."""
    states: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
async def seen(cluster, tmp_path_factory):
    """Let everything happen, and note what could be seen of it."""
    folder = tmp_path_factory.mktemp("monitors")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(deployed(cluster, "tiny", TINY))
        host, _, path = server.url.removeprefix("http://").partition("/")
        watching = monitors(folder, host, f"/{path}/metrics", until)
        prometheus, inbox = await stack.enter_async_context(watching)
        seen, stop, started = Seen(inbox), asyncio.Event(), time.time()

        async def everything(queries):
            return {query: await prometheus.range(query, started, time.time()) for query in queries}

        async def everything_moved():
            seen.busy, seen.states = await everything(QUERIES), await everything(STATES)
            return all(moved(series) for series in (*seen.busy.values(), *seen.states.values()))

        async def said(status, name):
            return inbox.of(status, name)

        workers = [asyncio.ensure_future(worker(server, folder, number, stop)) for number in range(N_WORKERS)]
        try:
            await until(partial(said, "firing", QUEUE_ALERT), timeout_s=PATIENCE_S)
            queue_s = time.time() - started
            os.kill((await server.engine())["pid"], signal.SIGKILL)
            await until(partial(said, "firing", RESTART_ALERT), timeout_s=PATIENCE_S)
            restart_s = time.time() - started
            with contextlib.suppress(TimeoutError):  # the tests say which
                await until(everything_moved)
            moved_s = time.time() - started
        finally:
            stop.set()
            await asyncio.wait_for(asyncio.gather(*workers), 60)
        await until(partial(said, "resolved", QUEUE_ALERT), timeout_s=PATIENCE_S)
        seen.after = await everything(QUERIES)
        for name, (label, selector) in VARIABLES.items():
            seen.variables[name] = await prometheus.values(label, selector)
        times = (queue_s, restart_s, moved_s, time.time() - started)
        print("alert, restart, all moved, over: " + ", ".join(f"{t:.1f} s" for t in times))  # noqa: T201
        yield seen


async def test_every_query_of_every_board_has_an_answer(seen):
    for name, panel, target in targets():
        query, panel_is = filled(target["expr"]), f"{name}: {panel['title']}"
        assert moved(seen.busy[query]), f"{panel_is}: {query} is always empty, NaN or zero"
        wanted = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
        for series in seen.after[query]:
            assert wanted <= set(series["metric"]), f"{panel_is} names {wanted} in its legend"
            assert math.isfinite(float(series["values"][-1][1])), (panel_is, query, series["metric"])


async def test_everything_happened(seen):
    assert [query for query in STATES if not moved(seen.states[query])] == []


async def test_the_variables_of_the_boards_have_values(seen):
    assert seen.variables["model_name"] == ["synthetic-tiny"]
    assert len(seen.variables["instance"]) == 1
    assert seen.variables["engine"] == ["0"]


async def test_an_alert_fires_and_clears(seen):
    (labels, notes), *_ = seen.inbox.of("firing", QUEUE_ALERT)
    assert (labels["setting"], labels["severity"]) == ("max_queue", "warning")
    assert "max_queue" in notes["action"]
    assert re.search(r"the queue holds \d", notes["summary"])
    assert seen.inbox.of("resolved", QUEUE_ALERT)


async def test_a_restart_is_told(seen):
    (_, notes), *_ = seen.inbox.of("firing", RESTART_ALERT)
    assert "engine 0 restarted 1 times" in notes["summary"]
