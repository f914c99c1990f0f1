"""Forty clients of all kinds at once: each answer is whole, nobody hangs, and nothing is left behind."""

import pytest

from conftest import deployed
from tests.chaos.crowd import ghosts
from tests.kinds.clients import KINDS, crowd, site

pytestmark = pytest.mark.ray

N_CLIENTS = 40
TINY, BERT = "synthetic-tiny", "synthetic-bert"
VALUES = {
    "n_threads": 1,
    "log_level": "warning",
    "drain_timeout_s": 1,
    "engines": {
        "tiny": {
            "model": f"builtin:{TINY}",
            "n_slots": 4,
            "n_ctx": 4096,
            "kv_cells": 4096,  # a quarter of what the slots could need: they preempt each other
            "pooling": "last",
        },
        "bert": {"model": f"builtin:{BERT}"},
    },
}
CANCELLED = 'cobali_requests_total{engine="tiny",outcome="cancelled"}'


@pytest.fixture
async def kinds(cluster):
    async with deployed(cluster, "kinds", VALUES) as server:
        yield server


async def test_forty_clients_of_all_kinds_lose_nothing(kinds):
    names = list(KINDS)
    n_leave = sum(names[i % len(names)] in {"leaves_chat", "leaves_messages"} for i in range(N_CLIENTS))
    async with site(kinds.url) as clients:
        assert (clients.talks, clients.embeds) == (TINY, [TINY, BERT])
        assert await crowd(clients, N_CLIENTS) == []
        assert await ghosts(kinds.url) == []
        slots = (await clients.http.get("/slots", params={"engine": "tiny"})).json()
        assert [slot["is_processing"] for slot in slots] == [False] * 4
        (n_cancelled,) = [
            float(line.rsplit(" ", 1)[1])
            for line in (await clients.http.get("/metrics")).text.splitlines()
            if line.startswith(CANCELLED)
        ]
        assert n_cancelled >= n_leave > 0
        assert await crowd(clients, 4) == [], "and all is as before"
