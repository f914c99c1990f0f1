"""The command line itself: cheap where nothing runs, one line where something is wrong."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cobali_ray import cli
from cobali_ray.ports import free_port

HEAVY = ("numpy", "ray", "matplotlib", "llama_cpp", "openai", "fastapi", "structlog", "httpx2")


HELP_AND_TYPOS = {
    "--help": (0, "Measure, and write a report."),
    "bench --help": (0, "Time each step of a tick"),
    "serv": (2, "Did you mean 'serve'?"),
    "bench chat": (2, "Did you mean 'chats'?"),
}


def test_help_and_typos_import_nothing_heavy():
    script = (
        "import sys\nfrom cobali_ray.cli import main\n"
        f"for words in {list(HELP_AND_TYPOS)!r}:\n"
        "    sys.argv = ['cobali', *words.split()]\n    sys.stderr = sys.stdout\n"
        "    try:\n        main()\n    except SystemExit as end:\n        print('ends:', end.code)\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    environ = {"COLUMNS": "120", "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=True
    )
    *shown, last = run.stdout.split("ends: ")
    codes = [int(text[0]) for text in run.stdout.split("ends: ")[1:]]
    assert codes == [code for code, _ in HELP_AND_TYPOS.values()], run.stdout
    for text, (_, said) in zip(shown, HELP_AND_TYPOS.values(), strict=True):
        assert said in text
    assert "heavy: []" in last


@pytest.mark.parametrize("imported", ["typer", "httpx2"])
def test_ctrl_c_while_python_imports_ends_a_command_without_a_word(tmp_path, imported):
    """`cobali` itself imports the one, `cobali chat` the other."""
    (tmp_path / f"{imported}.py").write_text("raise KeyboardInterrupt")
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [Path(sys.executable).with_name("cobali"), "chat"], capture_output=True, env=environ, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("complete x --url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1; start one with"),
        ("complete x --url localhost:8000", "'localhost:8000' is not an address such as"),
        ("complete x --url http://[::1", "'http://[::1' is not an address such as"),
        ("complete x --url http://", "'http://' is not an address such as"),
        ("complete x --url http://127.0.0.1:1 --key ü", "--key: an API key has no line breaks"),
        ("trace --url http://[::1", "'http://[::1' is not an address such as"),
        ("bench serve --target x=http://h:99999", "server answers at http://h:99999: Port out of range"),
        ("bench serve --prompts-file binary", "prompts_file: binary cannot be read: it is not text"),
        ("run --prompts binary", "--prompts: binary cannot be read: it is not text"),
        ("run --prompts empty", "prompts: there is none in the file"),
        ("serve cut.gguf --port {port}", "model: 'cut.gguf' is a damaged GGUF file: it ends in its header"),
        ("complete x --max-tokens 0", "Invalid value for '--max-tokens'"),
        ("chat --url http://127.0.0.1:1 --set temperature", "expected NAME=VALUE"),
        ("serve a --model b", "the model is given twice, a and b: leave one out"),
        ("serve nobody --port {port}", "there is no file or model 'nobody' here"),
        ("serve nobody.gguf --port {port}", "there is no file 'nobody.gguf'"),
        ("serve hf://x --port {port}", "is not hf://owner/repo/file.gguf"),
        (
            "serve builtin:tiny --port {port} --set n_ctx=8000000 --set n_slots=256 --set n_gpu_layers=0",
            "n_ctx: a KV cache of 2048000000 tokens for tiny-q8-0.gguf takes 5374.0 GB, and this machine has",
        ),
        ("serve --port many", "Invalid value for '--port'"),
        ("serve --port 0", "port: must be from 1 to 65535, got 0"),
        (f"models show {'x' * 300}", f"there is no file or model '{'x' * 300}' here"),
        (f"models show {'x' * 300}.gguf", "cannot be read: File name too long"),
        ("serve --prot 1", "No such option: --prot (Possible options: --host, --port)"),
        ("run", "Missing option '--prompts'"),
        ("models pull", "Missing argument 'MODEL'"),
        ("models pull hf://x", "is not hf://owner/repo/file.gguf"),
        ("models show builtin:nobody", "there is no built-in model 'nobody'; there are tiny, "),
        ("models make hf://owner/repo/m.gguf", "model: 'builtin:hf://owner/repo/m.gguf' is not builtin:NAME"),
        ("serve --port {port} --set cores=0-999999999", "cores: must be a list such as 0-3,8, of"),
        ("serve --port {port} --set gpus=0-999999999", "gpus: must be a list such as 0-3,8, of"),
        ("serve --port {port} --set log_ticks=/", "log_ticks: / cannot be written: Is a directory"),
        ("serve --port {port} --set n_gpu_layers=1.0e+30", "n_gpu_layers: Unable to parse input string"),
        ("serve --port {port} --set api_keys_file=/dev/zero", "api_keys_file: /dev/zero is not a regular"),
        ("serve --port {port} --set n_threads=2147483648", "n_threads: Input should be less than or"),
        ("serve --port {port} --set disk_cache_dir=/etc/passwd", "disk_cache_dir: /etc/passwd is not a"),
        ("serve --config /dev/zero", "config: /dev/zero is not a regular file"),
        ("serve --config deep.yaml", "config: deep.yaml is nested too deeply"),
        ("serve --config port.yaml", "port: must be a number, got 'many'"),
        ("serve --config list.yaml", "config: list.yaml: `args` must have NAME: VALUE on each line"),
        ("ps x", "unexpected extra argument"),
        ("pull hf://x/y", "pull: there is no such command; `cobali models pull MODEL` downloads a model"),
        ("list", "list: there is no such command; `cobali models list` lists models"),
        ("stop", "Ctrl-C stops a server, or `kill PID` with its pid from `cobali ps`"),
        ("rm tiny", "`cobali models show MODEL` says where the file is"),
    ],
)
def test_what_is_wrong_is_one_line(monkeypatch, capsys, tmp_path, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("applications:\n- args:\n  - n_slots: 4\n")
    (tmp_path / "deep.yaml").write_text("[" * 1200)
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "empty").touch()
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\1\0\0\0\0\0\0\0" * 2 + b"\1")
    (tmp_path / "port.yaml").write_text("http_options: {port: many}\napplications: [{args: {}}]")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["cobali", *words.format(port=free_port()).split()])
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("Error: ")
    assert says in said
    assert said.count("\n") == 1


def test_a_run_prints_its_numbers_and_no_log(tmp_path):
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    words = ("run", "--prompts", tmp_path / "prompts", "--model", "builtin:scripted", "--max-new", "2")
    done = subprocess.run(
        [Path(sys.executable).with_name("cobali"), *words], capture_output=True, text=True, check=True
    )
    assert "2 prompts" in done.stdout
    assert not done.stderr
