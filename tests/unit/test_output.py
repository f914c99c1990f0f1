"""What `cobali serve` writes: lines for a person, JSON for everything else."""

import io
import os
import re
import resource
import subprocess
import sys

import orjson
import pytest
from rich.console import Console

from cobali_ray.actors import deployed, node, output, serving
from cobali_ray.actors.banner import banner
from cobali_ray.actors.output import JsonLines, Screen, Workers, failing_as_event, open_output
from cobali_ray.errors import ConfigError, StartError
from cobali_ray.telemetry.lines import readable, request_line

NOON = {"timestamp": "2026-11-22T12:00:01Z"}
ANSWER = NOON | {
    "event": "http_request", "level": "info", "method": "POST", "route": "/v1/chat/completions",
    "model": "tiny", "tenant": "alice", "status": 200, "n_prompt": 1234, "n_cached": 1200, "n_output": 64,
    "ttft_s": 0.0843, "http_s": 1.5, "tokens_per_second": 73.4, "cancelled": False, "error": None,
}  # fmt: skip
FULL = (
    "12:00:01  200  POST /v1/chat/completions  tiny      1,234 (1,200 cached) -> 64 tok  TTFT 84 ms    "
    "73 tok/s   alice"
)
CLOSE = re.sub("  +", "  ", FULL)


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    output.time.tzset()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        pytest.param(200, FULL, id="columns"),
        pytest.param(len(CLOSE), CLOSE, id="close-together"),
        pytest.param(len(CLOSE) - 1, CLOSE.removesuffix("  alice"), id="one-less"),
        pytest.param(
            80, "12:00:01  200  POST /v1/chat/completions  tiny  1,234 (1,200 cached) -> 64 tok", id="80"
        ),
        pytest.param(20, "12:00:01  200", id="hardly-any"),
        pytest.param(1, "12:00:01", id="the-time-at-least"),
    ],
)
def test_a_request_is_one_line_that_loses_fields_from_the_right(width, shown):
    line = request_line(ANSWER, width).plain
    assert line == shown
    assert len(line) <= max(width, 8)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        pytest.param({"n_cached": 0}, "1,234 -> 64 tok", id="nothing-cached"),
        pytest.param({"ttft_s": 12.34}, "TTFT 12.3 s", id="long-wait"),
        pytest.param(
            {
                "status": 429,
                "error": "queue_full",
                "n_output": None,
                "ttft_s": None,
                "tokens_per_second": None,
            },
            "429  POST /v1/chat/completions  queue_full",
            id="error-code",
        ),
        pytest.param(
            {"status": None, "cancelled": True}, "-    POST /v1/chat/completions  client left", id="left"
        ),
        pytest.param({"route": "unmatched"}, "POST (no such path)", id="no-path"),
        pytest.param({"tenant": "a\x1b[31mb\n"}, "a [31mb", id="nothing-moves-the-cursor"),
        pytest.param(
            {"n_prompt": None, "n_output": None, "ttft_s": None, "tokens_per_second": None, "http_s": 0.012},
            "took 12 ms",
            id="no-tokens",
        ),
    ],
)
def test_what_a_line_says(facts, words):
    line = request_line(ANSWER | facts, 200).plain
    assert words in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        pytest.param({"event": "engine_away", "status": "restarting", "engine_id": "0"},
            "The engine died and is being restarted; its requests wait and then continue.", id="died"),
        pytest.param({"event": "engine_away", "status": "restarting", "engine_id": "0", "lost": "far:1"},
            "The engine lost far:1 and is being restarted; its requests wait and then continue.", id="lost"),
        pytest.param({"event": "engine_back", "away_s": 3.21, "engine_id": "a-1"},
            "Engine a-1 is back after 3.2 s.", id="back"),
        pytest.param({"event": "engine_open", "model": "tiny"}, "The engine has loaded tiny.",
            id="on-demand"),
        pytest.param({"event": "settings_read", "changed": ["engine-a"]},
            "The settings were read again; changed: engine-a.", id="reload"),
        pytest.param({"event": "flash_attention", "chosen": "off"}, None, id="news-for-files-alone"),
        pytest.param({"event": "engine_gone", "level": "warning"}, None, id="said-once-for-all"),
        pytest.param({"event": "disk_cache_off", "level": "warning", "engine_id": "a", "error": "full"},
            "engine a: disk cache off: error full", id="a-warning-without-words-of-its-own"),
        pytest.param(
            {"event": "request_failed", "level": "error", "cause": "Traceback\n  File\nKeyError: 'x'\n"},
            "A request failed: KeyError: 'x' (its traceback is in the log)",
            id="a-traceback-is-one-line",
        ),
        pytest.param({"event": "draining", "n_requests": 1, "limit_s": 30.0},
            "Waiting up to 30 s for 1 request to finish ... (Ctrl-C again to skip)", id="drain"),
        pytest.param({"event": "draining", "n_requests": 0}, "Stopping ... (Ctrl-C again to skip)",
            id="idle"),
        pytest.param(
            {"event": "node_died", "level": "error", "part": "raylet", "status": -9, "logs": "/logs"},
            "Ray's raylet ended (signal 9), and the server ends with it; start it again. Its log is in /logs",
            id="ray-died",
        ),
        pytest.param({"event": "stopped", "seconds": 1.23}, "Stopped in 1.2 s.", id="stopped"),
    ],
)  # fmt: skip
def test_what_else_happens_is_a_sentence(event, words):
    line = readable({"level": "info"} | NOON | event, 200)
    assert (line and line.plain) == (words and f"12:00:01  {words}")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Return a terminal, its screen, the seconds of its clock, and what it wants called later."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return ScreenOf()


class ScreenOf:
    def __init__(self):
        self.now_s, self.later, self.terminal = 100.0, [], Terminal()
        self.screen = Screen(
            self.terminal,
            now=lambda: self.now_s,
            later=lambda delay_s, act: self.later.append((delay_s, act)),
        )

    def take(self, **facts):
        self.screen.take(orjson.dumps(ANSWER | facts).decode(), "ingress 1")

    @property
    def lines(self):
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.terminal.getvalue()).splitlines()


def test_a_flood_is_counted_and_said_once_a_second(screen):
    for i in range(332):
        screen.take(status=429 if i % 2 else 200)
    assert len(screen.lines) == output.MAX_LINES
    ((delay_s, tell),) = screen.later
    assert delay_s == pytest.approx(1.0)
    tell()
    assert screen.lines[-1] == "... and 312 more in this second (156 x 200, 156 x 429)"
    screen.now_s += 1.0
    screen.take(tenant="next")
    assert screen.lines[-1].endswith("next")
    assert len(screen.lines) == output.MAX_LINES + 2


def test_what_was_left_out_is_said_before_the_end(screen):
    for _ in range(output.MAX_LINES + 3):
        screen.take()
    screen.screen.close()
    assert screen.lines[-1] == "... and 3 more in this second (3 x 200)"
    screen.take()
    assert len(screen.lines) == output.MAX_LINES + 1


def test_a_start_that_is_broken_off_leaves_no_wheel_behind_its_last_words(screen):
    with screen.screen.working("starting Ray"):
        screen.screen.say("broken_off")
        screen.screen.say("stopped", seconds=0.2)
        assert "starting Ray" in screen.terminal.getvalue().rpartition("Stopped")[2], "still drawn"
        screen.screen.close()  # and then the process ends
        erased = screen.terminal.getvalue().rpartition("starting Ray")[2]
        assert "\x1b[2K" in erased


def test_what_libraries_print_during_a_step_does_not_get_onto_the_screen(screen, capsys):
    with screen.screen.working("starting Ray"):
        sys.stdout.write("(raylet) The node has been marked dead")
    assert "raylet" in capsys.readouterr().out
    assert "raylet" not in screen.terminal.getvalue()


def test_what_several_ingresses_notice_is_said_once(screen):
    away = NOON | {"event": "engine_away", "level": "warning", "engine_id": "0", "status": "restarting"}
    for moment_s in (0.0, 0.1, 2.5):
        screen.now_s = 100.0 + moment_s
        screen.screen.take(orjson.dumps(away).decode(), "ingress")
    assert len(screen.lines) == 2


def test_that_engines_end_is_no_news_once_the_server_stops(screen):
    screen.screen.say("draining", n_requests=1, limit_s=30.0)
    away = NOON | {"event": "engine_away", "level": "warning", "engine_id": "0", "status": "stalled"}
    screen.screen.take(orjson.dumps(away).decode(), "ingress")
    screen.take(tenant="the last one")
    draining, last = [line for line in screen.lines if line]
    assert "for 1 request to finish" in draining
    assert last.endswith("the last one")


def test_lines_that_are_no_events_and_steps_of_engines_are_not_shown(screen):
    screen.screen.take("INFO serve 16483 -- Started <router>", "ServeController")
    screen.screen.take(
        orjson.dumps(NOON | {"event": "engine_open", "level": "info", "model": "m"}).decode(), "e"
    )
    assert screen.lines == []


@pytest.mark.parametrize("no_color", [True, False])
def test_colours_unless_nobody_wants_them(monkeypatch, no_color):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1") if no_color else monkeypatch.delenv("NO_COLOR", raising=False)
    there = ScreenOf()
    there.take()
    assert ("\x1b[32m200" in there.terminal.getvalue()) != no_color


def test_in_a_file_there_is_an_event_a_line_and_nothing_else():
    out = io.StringIO()
    told = open_output(out, verbose=bool)
    line = orjson.dumps(ANSWER).decode()
    told.take(line, "ingress 1")
    told.take("Traceback (most recent call last):", "ingress 1")
    told.take('{"no": "event"}', "ingress 1")
    told.say("stopped", seconds=1.0)
    with told.working("finding the model") as progress:
        progress("downloading", 0.0)
        progress("downloading", 0.5)
    first, second, third = out.getvalue().splitlines()
    assert first == line, "as it came"
    assert orjson.loads(second)["event"] == "stopped"
    assert orjson.loads(third)["part"] == "downloading"


def test_what_ray_prints_is_there_when_it_is_asked_for():
    out = io.StringIO()
    JsonLines(out, verbose=lambda: True).take("INFO serve -- Started", "ServeController 7")
    expected = {"event": "output", "source": "ServeController 7", "line": "INFO serve -- Started"}
    assert expected.items() <= orjson.loads(out.getvalue()).items()


def test_a_reader_that_is_gone_ends_nothing():
    class Gone(Terminal):
        def write(self, _):
            raise BrokenPipeError

    JsonLines(Gone()).say("stopped", seconds=1.0)
    Screen(Gone()).say("stopped", seconds=1.0)


def test_the_last_cry_of_a_worker_is_remembered():
    out = io.StringIO()
    workers = Workers(JsonLines(out))
    lines = [
        orjson.dumps(ANSWER).decode(),
        "ggml.c:1: GGML_ASSERT(x) failed",
        "*** SIGABRT received",
        "PC: @ 0x7f",
    ]
    workers.take({"lines": lines, "actor_name": "ServeReplica:cobali:engine", "pid": 7})
    assert workers.cry == "ggml.c:1: GGML_ASSERT(x) failed"
    assert out.getvalue().splitlines() == lines[:1], "and not shown"
    workers.take({"lines": ["*** SIGILL received at time=1 on cpu 1 ***"], "pid": 8})
    assert "SIGILL" in workers.cry


@pytest.mark.parametrize(
    ("cry", "words"),
    [
        ("GGML_ASSERT(x) failed", "GGML_ASSERT(x) failed."),
        ("*** SIGILL received at time=1 on cpu 1 ***", "COBALI_COMPILE=1 make serve"),
        ("", "lower n_ctx or n_slots"),
    ],
)
def test_an_engine_that_dies_while_it_loads_says_why(monkeypatch, cry, words):
    monkeypatch.setattr(serving, "logs_folder", lambda: "/tmp/ray/s/logs")
    dead = StartError("Engine", deployed.reason("Traceback\n  File\nray.exceptions.ActorDiedError()"))
    said = str(serving._explained(dead, cry))
    assert said.startswith("Engine did not start: its process died.")
    assert words in said
    other = StartError(
        "Engine", deployed.reason("Traceback\ncobali_ray.errors.ConfigError: n_ctx: too large")
    )
    assert str(serving._explained(other, cry)) == "Engine did not start: n_ctx: too large"


def test_too_few_files_are_found_out_before_ray_starts(monkeypatch):
    for most in (10_300, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=most: (1024, most))
        node.require_files()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    with pytest.raises(StartError, match=r"1,024 files here.*ulimit -Hn.*LimitNOFILE.*--ulimit"):
        node.require_files()


def test_a_disk_without_room_is_found_out_before_ray_starts(tmp_path, monkeypatch):
    node.require_room(tmp_path)
    monkeypatch.setattr(node, "ROOM_BYTES", 1 << 60)
    with pytest.raises(StartError, match=r"MiB free.*TMPDIR"):
        node.require_room(tmp_path)
    with pytest.raises(StartError, match=r"cannot be written .*TMPDIR"):
        node.require_room(tmp_path / "nowhere")


ONE = {
    "engine_id": "0", "model": "tiny", "file": "/models/tiny.gguf", "parameters": 4494592,
    "quant": "Q8_0", "size_bytes": 4926400, "n_ctx": 4096, "n_slots": 16, "runs_on": "2 CPU threads",
}  # fmt: skip
READY = {"seconds": 13.1, "url": "http://127.0.0.1:8000", "logs": "/tmp/ray/s/logs", "needs_key": False}
READY |= {"everywhere": False}


def drawn(width, **facts):
    console = Console(file=io.StringIO(), width=width)
    console.print(banner(READY | facts, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_banner_says_where_the_page_is_first():
    lines = [line.split(maxsplit=1) for line in drawn(80, models=[ONE]) if line]
    assert lines[0][1].endswith("is ready after 13.1 s")
    assert lines[1:-1] == [
        ["Page", "http://127.0.0.1:8000/"], ["Chat", "cobali chat --url http://127.0.0.1:8000"],
        ["API", "http://127.0.0.1:8000/v1"], ["http://127.0.0.1:8000/docs", "describes it"],
        ["Model", "tiny   4.5M, Q8_0, 4.9 MB"], ["/models/tiny.gguf"],
        ["Context", "4,096 tokens a request, 16 slots"], ["Runs", "on   2 CPU threads"],
        ["Keys", "none needed (settings api_keys, api_keys_file)"], ["Logs", "/tmp/ray/s/logs"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "found", "said"),
    [
        pytest.param(".venv/bin/cobali", None, ".venv/bin/cobali", id="not-where-a-shell-looks"),
        pytest.param(".venv/bin/cobali", "/usr/bin/cobali", "cobali", id="installed"),
        pytest.param("/usr/lib/python3/pytest", None, "cobali", id="embedded"),
    ],
)
def test_the_banner_names_a_command_that_can_be_typed(monkeypatch, argv, found, said):
    monkeypatch.setattr("sys.argv", [argv])
    monkeypatch.setattr("shutil.which", lambda _: found)
    assert output.own_command() == said


def test_several_engines_are_a_table_that_fits():
    later = {"engine_id": "b", "model": "second"}
    lines = drawn(80, models=[ONE | {"engine_id": "a"}, later], needs_key=True)
    assert any(re.match(r"  a +tiny +4.5M, Q8_0, 4.9 MB +4,096 +16 +2 CPU threads", line) for line in lines)
    assert any(re.match(r"  b +second +- +- +loaded on demand", line) for line in lines)
    assert any("Bearer YOUR_KEY" in line for line in lines)
    assert max(map(len, lines)) <= 80


APART = """
import os, subprocess, sys
from pathlib import Path
from cobali_ray.actors.output import RedirectedOutput
apart = RedirectedOutput(Path(sys.argv[1]) / "driver.log")
print("chatter")
subprocess.run(["echo", "of a child"])
apart.terminal.write("for the user\\n")
apart.terminal.flush()
apart.move(Path(sys.argv[1]) / "moved.log")
os.write(2, b"more chatter\\n")
apart.undo()
print("after it")
"""


def test_what_libraries_print_goes_to_a_file(tmp_path):
    run = subprocess.run([sys.executable, "-c", APART, tmp_path], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("for the user\nafter it\n", "")
    *first, last = (tmp_path / "moved.log").read_text().splitlines()
    assert (sorted(first), last) == (["chatter", "of a child"], "more chatter")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("port", "taken"), 2), (StartError("Ray", "no memory"), 1)],
    ids=["usage", "start"],
)
def test_a_start_that_fails_is_an_event_where_there_is_no_terminal(capfd, monkeypatch, error, code):
    monkeypatch.setattr(os.path, "sameopenfile", lambda *_: True)
    with pytest.raises(SystemExit) as left, failing_as_event():
        raise error
    assert left.value.code == code
    line = orjson.loads(capfd.readouterr().out)
    assert (line["event"], line["level"], line["error"]) == ("start_failed", "error", str(error))
    monkeypatch.setattr(os.path, "sameopenfile", lambda *_: False)
    with pytest.raises(type(error)), failing_as_event():
        raise error


def test_the_banner_says_who_else_reaches_the_server():
    shared = drawn(100, models=[ONE], everywhere=True)
    assert any(line.split()[:2] == ["Network", "all"] for line in shared)
    assert any("anyone who reaches this machine" in line for line in shared)
