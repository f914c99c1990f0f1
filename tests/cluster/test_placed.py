"""One model on two machines of a Ray cluster: the engine on one, a worker that Ray puts on the other."""

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx2
import openai
import psutil
import pytest
from machines import URL, Machines, missing, ready, story

from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

START_S = 240
MEMORY_MIB = 50
LISTENING = "0A"
SETTINGS = {
    "model": "builtin:tiny",
    "n_slots": 8,
    "n_ctx": 2048,
    "n_threads": 1,
    "devices": "ray-cpu,worker",
    "worker_memory_mib": MEMORY_MIB,
    "drain_timeout_s": 1,
}
APPLICATION = {
    "name": "cobali",
    "route_prefix": "/",
    "import_path": "cobali_ray.actors.app:build",
    "args": SETTINGS,
    "deployments": [
        {"name": name, "ray_actor_options": {"num_cpus": 0.1, "resources": {"machine-1": 0.1}}}
        for name in ("engine", "ingress")
    ],
}


@pytest.fixture(scope="module")
def machines():
    if why := missing():
        pytest.skip(f"no machines of our own: {why}")
    with Machines(2, host="0.0.0.0") as made:
        options = {"proxy_location": "EveryNode", "http_options": {"host": "127.0.0.1", "port": 8000}}
        made.deploy(options | {"applications": [APPLICATION]})
        wait_until(ready, timeout_s=START_S, pause_s=0.5)
        yield made


def workers(machines, i):
    """Return the processes of a machine that lend a device."""
    found = []
    for pid in machines.pids(i):
        with suppress(psutil.Error):
            if "cobali_ray.backend.worker" in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


def test_the_worker_is_on_the_other_machine_and_only_its_tunnel_listens_there(machines):
    (engine,) = httpx2.get(f"{URL}/ready").json()["engines"]
    assert [device["name"] for device in engine["devices"]] == ["ray-cpu-1", "worker-1"]
    assert all(device["total_bytes"] == MEMORY_MIB << 20 for device in engine["devices"])
    (there,) = workers(machines, 2)
    assert listening(there) == ["0100007F", "0200C70A"], "127.0.0.1, and the tunnel on 10.199.0.2"


def listening(pid):
    """Return the IPv4 addresses on which a process listens, as Linux writes them, also within IPv6."""
    own = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [
        line for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    rows = [row for row in map(str.split, lines) if row[3] == LISTENING and f"socket:[{row[9]}]" in own]
    return sorted(row[1].partition(":")[0][-8:] for row in rows)


def test_a_stream_goes_on_when_the_worker_is_lost(machines):
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120) as client:
        expected = story(client)
        (lost,) = workers(machines, 2)
        found = story(client, partial(os.kill, lost, signal.SIGKILL))
        assert expected.flaw(found) == ""
    assert workers(machines, 2) != [lost]
