"""A model that is unloaded gives its memory back while the process lives."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.model

SCRIPT = """
import asyncio
from pathlib import Path
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.core.request.request import Request
from cobali_ray.settings import EngineSettings

def rss_mib():
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) >> 10

async def main():
    engine = EngineServer(EngineSettings(model="builtin:tiny", load="on_demand", n_slots=64, n_ctx=4096,
                                         host_cache_mib=0, log_level="error", n_threads=1))
    for _ in range(2):
        before = rss_mib()
        assert await engine.load() is None
        await engine.run(Request(request_id="r", prompt=(1, 2, 3), max_tokens=5, reply_to="nobody"))
        loaded = rss_mib()
        assert await engine.unload() is None
        print(before, loaded, rss_mib(), flush=True)
    engine.__del__()

asyncio.run(main())
"""


def test_unloading_shows_in_the_memory_of_the_process():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    _, (before, loaded, after) = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    # The first round also loads libraries.
    assert loaded - before > 300, "what a load takes"
    assert after - before < 0.05 * (loaded - before), "and an unload gives back"
