"""`cobali chat` in a real terminal, and `cobali complete` in a pipe, against the whole server without Ray."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stack import Site

from tests.waiting import wait_until

COBALI = Path(sys.executable).with_name("cobali")
TMUX = shutil.which("tmux")


@pytest.fixture(scope="module")
def tiny():
    with Site(model="builtin:tiny", n_slots=2, n_ctx=2048) as site:
        yield site


@pytest.fixture
def environ(tmp_path):
    return os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "LANG": "C.UTF-8"}


class Terminal:
    """A terminal of tmux, with a server of its own."""

    def __init__(self, folder, environ, command):
        self._tmux = [TMUX, "-S", str(folder / "tmux"), "-f", os.devnull]
        self._environ = environ
        self("new-session", "-d", "-x", "90", "-y", "30", f"{command}; echo LEFT $?; cat")

    def __call__(self, *words):
        done = subprocess.run(
            [*self._tmux, *words], env=self._environ, capture_output=True, text=True, check=True
        )
        return done.stdout

    def type(self, text):
        self("send-keys", "-l", text)
        self("send-keys", "Enter")

    def wait(self, pattern):
        """Wait until the terminal shows this, and return what it shows."""
        wait_until(
            lambda: re.search(pattern, self._shown()), so_far=lambda: f"{pattern!r} in {self._shown()}"
        )
        return self._shown()

    def _shown(self):
        return self("capture-pane", "-p", "-J", "-S", "-200")


@pytest.fixture
def terminal(tmp_path, environ):
    if TMUX is None:
        pytest.skip("no tmux on this machine: apt-get install tmux")
    opened = []

    def open_(command):
        opened.append(Terminal(tmp_path, environ, command))
        return opened[-1]

    yield open_
    for one in opened:
        one("kill-server")


def test_a_chat_in_a_terminal(tiny, terminal, tmp_path):
    shown = terminal(f"{COBALI} chat --url {tiny.url} --set temperature=0")
    shown.wait(r"tiny at http.*\n> ")
    shown.type("Hello! What are you?")
    said = shown.wait(r"I am Tiny[\s\S]*\n\d+ tokens, prompt \d+, first after .*, [\d.]+ tok/s\n\n> ")
    assert said.count("I am Tiny") == 1, "drawn once, whatever grew before"
    shown("set-buffer", "What is\ncontinuous\nbatching?")
    shown("paste-buffer", "-p")  # three lines of a paste are one question
    shown("send-keys", "Enter")
    shown.wait(r"batching\?\n[\s\S]*tok/s\n\n> ")
    shown.type("/set temperature=hot")
    shown.wait(r"Error: temperature: input should be a valid number\n> ")
    shown.type(f"/save {tmp_path}/kept.json")
    shown.wait("Saved 4 messages")
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert [one["role"] for one in kept["messages"]] == ["user", "assistant"] * 2
    assert kept["messages"][2]["content"] == "What is\ncontinuous\nbatching?"
    shown("send-keys", "Up")
    shown.wait(r"Saved 4[\s\S]*\n> /save .*kept\.json")
    shown("send-keys", "C-c")
    shown.wait("Ctrl-C again leaves")
    shown("send-keys", "C-c")
    shown.wait("LEFT 0")
    assert "Hello! What are you?" in (tmp_path / "cobali_ray" / "chat").read_text()


def test_ctrl_c_stops_an_answer_on_the_server_too(terminal):
    with Site(n_slots=2, n_ctx=65536, model="builtin:scripted:0.02") as site:
        # Greedy, or the answer is other characters each time, of which Markdown makes anything.
        shown = terminal(f"{COBALI} chat --url {site.url} --set max_tokens=50000 --set temperature=0")
        shown.wait(r"scripted at http.*\n> ")
        shown.type("Go on for long")
        shown.wait(r"Go on for long\n(?!\.\.\.)[^\n]{20}")
        shown("send-keys", "C-c")
        shown.wait(r"\nstopped\n\n> ")
        shown.type("/exit")
        shown.wait("LEFT 0")
        wait_until(lambda: not site.n_running())


def run(environ, *words, stdin=""):
    return subprocess.run(
        [COBALI, *words], input=stdin, env=environ, capture_output=True, text=True, check=False
    )


def test_a_pipe_gets_plain_text(tiny, environ):
    asked = run(environ, "chat", "--url", tiny.url, "--set", "temperature=0", stdin="Hello! What are you?")
    assert asked.stdout.startswith("I am Tiny, ")
    assert asked.stdout.count("\n") == 1
    words = ("--url", tiny.url, "--temperature", "0", "--max-tokens", "8")
    piped = run(environ, "complete", *words, stdin="Once upon")
    assert piped.stdout.startswith(" a time")
    answer = json.loads(run(environ, "complete", "Once upon", *words, "--json").stdout)
    assert answer["choices"][0]["text"] == piped.stdout.removesuffix("\n")
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("shell", "startup", "prompt"),
    [
        ("bash", ".bashrc", "PS1='$ '"),
        ("zsh", ".zshrc", "PS1='$ '"),
        ("fish", ".config/fish/config.fish", "function fish_prompt; echo '$ '; end"),
    ],
)
def test_tab_completes_models_once_completion_is_installed(
    terminal, environ, tmp_path, shell, startup, prompt
):
    """A name with a colon is one word, the first Tab completes already, and files are completed too."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    manifest = tmp_path / ".ollama/models/manifests/registry.ollama.ai/library/qwen2.5/0.5b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:a"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    (tmp_path / ".ollama/models/blobs").mkdir()
    (tmp_path / ".ollama/models/blobs/sha256-a").touch()
    (tmp_path / "mine.gguf").touch()
    file = tmp_path / startup
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{prompt}\ncd\n")
    environ["PATH"] = f"{COBALI.parent}:{environ['PATH']}"
    shown = terminal(shell)
    shown.wait(r"(?m)^\$ $")
    shown.type("cobali --install-completion")
    shown.wait("completion installed in")
    with file.open("a") as rest:
        rest.write(prompt.replace("$", ">"))
    shown.type(f"exec {shell}")
    shown.wait(r"(?m)^> $")
    for begun, whole in (
        ("cobali serve ollama://qw", "cobali serve ollama://qwen2.5:0.5b "),
        ("cobali chat builtin:ti", "cobali chat builtin:tiny "),
        ("cobali serve ./mi", "cobali serve ./mine.gguf "),
    ):
        shown("send-keys", "-l", begun)
        shown("send-keys", "Tab")
        shown("send-keys", "-l", "#")
        shown.wait(rf"{re.escape(whole)}#")
        shown("send-keys", "C-u")
