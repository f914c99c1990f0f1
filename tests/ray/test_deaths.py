"""What survives the death of an ingress, of Serve's controller, of its proxy and of HAProxy."""

import asyncio
import os

import pytest

from cobali_workloads.servers.process import cobali_server
from tests.chaos.deaths import kill_one, witness

pytestmark = pytest.mark.ray

STALL_TIMEOUT_S = 5.0
N = 8


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server of its own."""
    values = {
        "model": "builtin:scripted:0.02", "n_slots": 16, "n_ctx": 4096, "n_ingress": 2,
        "stall_timeout_s": STALL_TIMEOUT_S, "log_level": "warning",
    }  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with cobali_server(values, tmp_path_factory.mktemp("own"), environ) as server:
        yield server


@pytest.mark.parametrize(
    ("parts", "cuts", "served_s"),
    [
        # Serve looks for it every second or so and starts another.
        pytest.param(["HAProxy"], range(N, N + 1), 20.0, id="haproxy"),
        # HAProxy sends streams to both, and new requests to the one that is left.
        pytest.param(["an ingress"], range(1, N), STALL_TIMEOUT_S, id="ingress"),
        pytest.param(["Serve's proxy", "Serve's controller"], range(1), STALL_TIMEOUT_S, id="serves-own"),
    ],
)
async def test_nobody_hangs_when_a_part_dies(own, parts, cuts, served_s):
    def kill():
        for part in parts:
            kill_one(own.pid, part)

    fate = await asyncio.wait_for(witness(own.url, kill, n_streams=N, n_tokens=100), timeout=120)
    print(f"{parts}: {fate}")  # noqa: T201 shown with -s
    assert fate.wrong == []
    assert fate.n_cut in cuts
    assert fate.n_whole == N - fate.n_cut
    assert max(fate.cut_s, fate.pause_s) < STALL_TIMEOUT_S
    assert fate.served_s < served_s
