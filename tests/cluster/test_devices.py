"""A model that fits on neither of two machines, on both: an engine here, a worker there, a tunnel between."""

import json
import signal
import sys
import threading

import httpx2
import openai
import pytest
from machines import URL, Machines, missing, ready, story

from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

PORT = 50053
WORKER = f"10.199.0.2:{PORT}"
START_S = 240
COBALI = (sys.executable, "-m", "cobali_ray")
MEMORY_MIB = 50
SETTINGS = {"n_slots": 8, "n_ctx": 2048, "n_threads": 1}
LISTENING = "0A"
QUESTION = {"model": "tiny", "temperature": 0, "messages": [{"role": "user", "content": "What is a slot?"}]}
PROMPT = {
    "model": "tiny",
    "temperature": 0,
    "max_tokens": 2,
    "prompt": "A slot is room for one sequence. " * 40,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def options(devices, key):
    given = SETTINGS | {"devices": devices}
    if "worker" in devices.split(","):
        given["worker_memory_mib"] = MEMORY_MIB
    if ":" in devices:
        given["worker_key_file"] = key
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


class Lent:
    """The worker on the second machine, which can be killed and started again."""

    def __init__(self, machines, folder):
        self._machines, self._folder = machines, folder
        self.key, self.log = folder / "worker.key", folder / "worker.log"
        self.start()
        wait_until(self.key.exists, timeout_s=START_S)

    def start(self):
        listen = ("--listen", f"0.0.0.0:{PORT}", "--key-file", self.key, "--threads", "1")
        memory = ("--memory", str(MEMORY_MIB), "--cache-dir", self._folder / "weights")
        self._process = self._machines.begin(2, self.log, *COBALI, "worker", *listen, *memory)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def machines():
    if why := missing():
        pytest.skip(f"no machines of our own: {why}")
    with Machines(2, host="0.0.0.0", ray=False) as made:
        yield made


@pytest.fixture(scope="module")
def lent(machines, tmp_path_factory):
    made = Lent(machines, tmp_path_factory.mktemp("worker"))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def served(machines, lent, tmp_path_factory):
    """A server on the first machine, with a device there and one on the second."""
    log = tmp_path_factory.mktemp("server") / "log"
    words = ("serve", "builtin:tiny", "--host", "0.0.0.0", "--port", "8000")
    process = machines.begin(1, log, *COBALI, *words, *options(f"{WORKER},worker", lent.key))
    try:
        wait_until(lambda: ready() or process.poll() is not None, timeout_s=START_S, pause_s=0.5)
        assert process.poll() is None, log.read_text()[-3000:]
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def engines():
    return httpx2.get(f"{URL}/ready", timeout=10.0).json()["engines"]


def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)


def test_without_the_key_nobody_gets_in_and_only_the_tunnel_listens(machines, lent, tmp_path):
    wait_until(lambda: len(listening(machines, 2)) == 2, timeout_s=START_S)
    open_to_all = [address for address in listening(machines, 2) if not address.startswith("0100007F:")]
    assert [int(address.rpartition(":")[2], 16) for address in open_to_all] == [PORT]
    other = tmp_path / "other.key"
    other.write_bytes(b"0" * 40)
    other.chmod(0o600)
    done = machines.run(1, *COBALI, "devices", *options(f"{WORKER},worker", other))
    assert done.returncode, done.stdout
    assert "worker_key_file must be the file of its --key-file" in " ".join(done.stderr.split())


def listening(machines, i):
    """Return the TCP addresses that listen on a machine, as Linux writes them."""
    lines = machines.run(i, "cat", "/proc/net/tcp", "/proc/net/tcp6").stdout.splitlines()
    return [words[1] for words in map(str.split, lines) if words[3] == LISTENING]


def test_neither_machine_holds_it_alone(machines, lent):
    for alone in ("worker", WORKER):
        done = machines.run(1, *COBALI, "devices", "builtin:tiny", *options(alone, lent.key))
        assert "It does not fit" in done.stdout, done.stdout + done.stderr


def test_both_together_serve_it(served):
    with client() as openai_client:
        first = openai_client.chat.completions.create(**QUESTION)
        assert "KV cache" in first.choices[0].message.content
        again = openai_client.chat.completions.create(**QUESTION)
        assert again.choices[0].message.content == first.choices[0].message.content
        prompts = [openai_client.completions.create(**PROMPT) for _ in "ab"]
        assert prompts[0].usage.prompt_tokens > 200
        assert prompts[1].usage.prompt_tokens_details.cached_tokens > 100
        asked = [{"role": "user", "content": "What is the weather in Paris?"}]
        called = openai_client.chat.completions.create(
            **QUESTION | {"messages": asked}, tools=[WEATHER], tool_choice="required"
        )
        call = called.choices[0].message.tool_calls[0].function
        assert call.name == "get_weather"
        assert "city" in json.loads(call.arguments)
    (engine,) = engines()
    devices = engine["devices"]
    assert [device["name"] for device in devices] == [WORKER, "worker-1"]
    assert all(device["total_bytes"] == MEMORY_MIB << 20 and device["busy_s"] > 0 for device in devices)


def test_a_stream_goes_on_when_the_other_machine_loses_its_worker(served, lent):
    with client() as openai_client:
        expected, killed = story(openai_client), threading.Event()

        def kill():
            lent.kill()
            lent.start()
            killed.set()

        found = story(openai_client, threading.Thread(target=kill).start)
        assert killed.wait(60)
        assert expected.flaw(found) == ""
    wait_until(ready, timeout_s=START_S, pause_s=0.2)
