"""The rival's command line, its build key and environment, presets, processes; nothing is compiled here."""

import signal
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from cobali_ray.backend.devices import ComputeDevice
from cobali_ray.backend.library import cuda_part
from cobali_ray.errors import ConfigError
from cobali_ray.settings import read_settings
from cobali_ray.signals import ended_in_order
from cobali_workloads.commands.peers_report import versus_best
from cobali_workloads.load.jobs import JobMaker, LoadCase
from cobali_workloads.load.options import Workload
from cobali_workloads.load.prompts import PromptMaker, uniform_costs
from cobali_workloads.load.run import ServeResult, contender
from cobali_workloads.load.target import Target
from cobali_workloads.report.rounds import Rounds
from cobali_workloads.servers.llama_server import (
    PeerSettings,
    build_key,
    build_share,
    installed_libraries,
    llama_server_binary,
    server_command,
)
from cobali_workloads.servers.presets import PRESETS
from cobali_workloads.servers.process import ServerProcess, our_server
from cobali_workloads.servers.versus import loads_of

SETTINGS = PeerSettings(model=Path("m.gguf"), n_slots=16, n_ctx=1024, n_threads=2, threads_wait="passive")


def test_llama_servers_command_line():
    command = server_command(Path("bin/llama-server"), SETTINGS, 8123)
    assert command == [
        "bin/llama-server", "-m", "m.gguf", "-a", "m", "--host", "127.0.0.1", "--port", "8123",
        "-np", "16", "-cb", "-c", "16384", "-t", "2", "-tb", "2", "--cache-ram", "0",
        "--threads-http", "72",
    ]  # fmt: skip
    assert server_command(Path("x"), SETTINGS, 1, further="-b 512")[-2:] == ["-b", "512"]
    assert "--cache-ram" not in server_command(Path("x"), replace(SETTINGS, comes_back=True), 1)


@pytest.mark.parametrize(("wait", "expected"), [("passive", "passive"), ("active", None)])
def test_both_servers_get_the_same_openmp_policy(monkeypatch, wait, expected):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    monkeypatch.setenv("COBALI_N_SLOTS", "3")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "3")
    monkeypatch.setenv("COBALI_CACHE", "here")
    environ = PeerSettings(model=Path("m"), n_slots=1, n_ctx=64, n_threads=1, threads_wait=wait).environ()
    assert environ.get("OMP_WAIT_POLICY") == expected
    assert not {"GOMP_SPINCOUNT", "COBALI_N_SLOTS", "LLAMA_ARG_CTX_SIZE"} & set(environ)
    assert environ["COBALI_CACHE"] == "here"


@pytest.mark.parametrize(("kind", "expected"), [("GPU", "CUDA0"), ("CPU", None)])
def test_llama_server_is_told_of_the_gpus_of_an_added_part(monkeypatch, tmp_path, kind, expected):
    (part := cuda_part(tmp_path)).parent.mkdir(parents=True)
    part.touch()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / "lib"))
    found = [ComputeDevice("CUDA0", "a card", kind, 0)]
    monkeypatch.setattr("cobali_workloads.servers.llama_server.local_devices", lambda: found)
    environ = SETTINGS.environ()
    assert environ.get("LLAMA_ARG_DEVICE") == expected
    assert environ.get("GGML_BACKEND_PATH") == (expected and str(part))


def test_a_build_belongs_to_its_libraries(tmp_path):
    (tmp_path / "libllama.so").write_bytes(b"one")
    (tmp_path / "libllama.so.0").symlink_to("libllama.so")
    before = build_key(tmp_path, "0.3.36")
    assert before.startswith("0.3.36-")
    assert build_key(tmp_path, "0.3.36") == before
    (tmp_path / "libllama.so").write_bytes(b"two")
    assert build_key(tmp_path, "0.3.36") != before
    assert build_key(tmp_path, "0.3.37") != build_key(tmp_path, "0.3.36")


def test_a_binary_that_is_there_is_not_built_again(tmp_path):
    def must_not(what, share):
        raise AssertionError(what)

    from importlib.metadata import version

    key = build_key(installed_libraries(), version("llama-cpp-python"))
    there = tmp_path / "llama-server" / f"llama-server-{key}"
    there.parent.mkdir()
    there.touch()
    assert llama_server_binary(must_not, cache_dir=tmp_path) == there


@pytest.mark.parametrize(("line", "share"), [
    ("[33/132] Building CXX object a.o", 0.25),
    ("[ 25%] Building CXX object a.o", 0.25),
    ("[100%] Linking", 1.0),
    ("-- Configuring done", None),
    ("a.cpp:3: warning [4/5]", None),
])  # fmt: skip
def test_build_progress(line, share):
    assert build_share(line) == share


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_fit_their_slots(name):
    preset = PRESETS[name]
    shape = preset.shape
    longest = shape.prompt.high if hasattr(shape.prompt, "high") else shape.prompt.tokens
    answer = shape.output.high if hasattr(shape.output, "high") else shape.output.tokens
    shared = shape.prefix.tokens if shape.prefix else 0
    n_turns = shape.turns.n_turns if shape.turns else 1
    assert shared + n_turns * (longest + answer) <= preset.n_ctx
    if shape.kind == "closed" and not shape.turns:  # conversations are more than slots, in turn
        n_streams = max(shape.concurrency) + (shape.intruder is not None)
        assert n_streams <= preset.n_slots
    if shape.intruder:
        assert shape.intruder.prompt_tokens + shape.intruder.output_tokens <= preset.n_ctx


def test_a_load_for_each_share_of_the_capacity_and_for_each_level():
    steady, beside = PRESETS["steady-0.5b"], PRESETS["intruder-4096-0.5b"].shape
    loads = loads_of(steady.shape, steady.capacity_shares, 0.5)
    assert [(load.label, load.shape.rate_rps) for load in loads] == [
        ("0.4 of capacity", 0.2), ("0.6 of capacity", 0.3), ("0.8 of capacity", 0.4),
    ]  # fmt: skip
    assert loads[0].alone is None
    four, fifteen = loads_of(beside, (), 0.0)
    assert (four.label, four.case.clients, four.case.intruded) == ("4+intruder", 4, True)
    assert fifteen.case.clients == 15
    assert (fifteen.alone.prompt.tokens, fifteen.alone.concurrency) == (4096, (1,))
    intruders = JobMaker(beside, PromptMaker(uniform_costs(1.0), 1)).intruders("k")
    assert [job.at_s for job in islice(intruders, 2)] == [10.0]


def versus(ours, theirs, figure):
    """Compare rounds of one figure: ours, and those of others by name."""
    case = LoadCase(label="x")
    names = ["cobali", *theirs]
    targets = [Target(name=n, url="", host="", port=0, address="", tls=False, model="") for n in names]
    result = ServeResult(Workload(PRESETS["burst-0.5b"].shape), targets, [case], Rounds())
    for name, values in zip(names, [ours, *theirs.values()], strict=True):
        result.rounds.figures[contender(name, case)] = [{figure: value} for value in values]
    return versus_best(result, case, figure)


@pytest.mark.parametrize(("figure", "best", "ratios"), [
    pytest.param("output_tokens_per_s", "b", [0.5, 1.0, 2.0], id="of-a-rate-the-most"),
    pytest.param("ttft_p50_s", "a", [1.0, 2.0, 4.0], id="of-a-time-the-least"),
])  # fmt: skip
def test_the_best_of_the_others_is_best_by_its_median(figure, best, ratios):
    theirs = {"a": [10.0, 10.0, 10.0], "b": [20.0, 20.0, 20.0], "unknown": [float("nan")] * 3}
    found = versus([10.0, 20.0, 40.0], theirs, figure)
    assert (found.best, found.ratios) == (best, ratios)
    assert found.middle == ratios[1]


def test_what_nobody_has_is_not_compared():
    assert versus([1.0], {"a": [float("nan")]}, "itl_p99_s") is None


def test_our_server_gets_the_same_settings(tmp_path):
    import yaml

    server = our_server(SETTINGS, tmp_path, {"prefill_chunk": 64})
    config = yaml.safe_load((tmp_path / "serve_config.yaml").read_text())
    settings = read_settings(config["applications"][0]["args"])
    expected = {
        "n_slots": 16, "n_ctx": 1024, "n_threads": 2, "threads_wait": "passive", "kv": "auto",
        "prefill_chunk": 64,
    }  # fmt: skip
    assert settings.values().items() >= expected.items()
    assert server.url.endswith(str(config["http_options"]["port"]))


HTTP = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404); self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.serve_forever()
"""


def process(tmp_path, port, program=HTTP):
    return ServerProcess(
        "it", [sys.executable, "-c", program, str(port)], url=f"http://127.0.0.1:{port}", ready="/ready",
        environ={}, log=tmp_path / "it.log",
    )  # fmt: skip


def test_a_server_runs_for_as_long_as_the_block(tmp_path):
    from cobali_ray.ports import free_port

    def interrupted(server):
        with server:
            assert server.mapped_libraries() == []
            assert Path(f"/proc/{server.pid}").exists()
            raise KeyboardInterrupt

    server = process(tmp_path, free_port())
    with pytest.raises(KeyboardInterrupt):
        interrupted(server)
    assert not Path(f"/proc/{server.pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_too(tmp_path, number):
    from cobali_ray.ports import free_port

    server = process(tmp_path, free_port())
    before = signal.getsignal(number)
    with pytest.raises(SystemExit), ended_in_order(), server:
        signal.raise_signal(number)
    assert not Path(f"/proc/{server.pid}").exists()
    assert signal.getsignal(number) is before


def test_a_server_that_ends_at_its_start_shows_its_log(tmp_path):
    server = process(tmp_path, 1, "print('no such model'); raise SystemExit(3)")
    with pytest.raises(ConfigError, match="no such model"), server:
        pass
