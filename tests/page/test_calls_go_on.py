"""Tools called at length while the engine dies and comes back: what the client joins is whole and valid."""

import asyncio

import httpx2
import pytest
from stack import Site

from tests.chaos.callers import call
from tests.chaos.crowd import Report
from tests.waiting import until

N = 6
OUTPUT = 'cobali_tokens_total{engine="0",kind="decode"'


async def count(http, series):
    text = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in text if line.startswith(series))


@pytest.mark.model
@pytest.mark.thorough
def test_calls_go_on_behind_what_was_said():
    report, killed = Report(), asyncio.Event()

    async def go():
        async with httpx2.AsyncClient(base_url=site.url, timeout=60.0) as http:

            async def ask(number):
                while not killed.is_set():  # so that the engine has calls, however late it dies
                    await call(http, number, report)

            callers = [asyncio.ensure_future(ask(number)) for number in range(N)]

            async def are_under_way():
                return await count(http, OUTPUT) >= 20 * N

            await until(are_under_way)
            await asyncio.to_thread(site.kill_engine)
            killed.set()
            await asyncio.to_thread(site.revive_engine)
            await asyncio.gather(*callers)
            return await count(http, "cobali_continued_total{")

    with Site(model="builtin:tiny", n_slots=8, n_ctx=1024, n_threads=1) as site:
        n_continued = asyncio.run(go())
    assert report.wrong == []
    assert report.n_answers >= N
    assert n_continued > 0
