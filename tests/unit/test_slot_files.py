"""Slots saved by name and brought back: through the loop's thread, over the scripted backend."""

import threading
from concurrent.futures import Future

import pytest

from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.request.events import Delta, End
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.engine.slot_files import MAGIC, SlotFiles
from cobali_ray.errors import (
    BackendError,
    InvalidParameterError,
    SlotBusyError,
    SlotFileError,
    SlotFilesOffError,
)
from cobali_ray.testing import FakeClock

WAIT_S = 60
PROMPT = b"a long prompt that somebody wants to keep over a restart"


class Backend(ScriptedBackend):
    """Waits in a pass where it is told to."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.may_go, self.begun = threading.Event(), threading.Event()
        self.may_go.set()

    def cell_kind(self):
        return 400 * "a layer of many, "

    def forward(self, batch):
        self.begun.set()
        assert self.may_go.wait(WAIT_S)
        super().forward(batch)


class Releasing:
    """A loop whose pass under way goes on once something was asked."""

    def __init__(self, server):
        self._server = server

    def act(self, action):
        answer = self._server.loop.act(action)
        self._server.backend.may_go.set()
        return answer


class Server:
    """A loop, and the files of its slots."""

    def __init__(self, folder, *, model="m", n_slots=2, n_cells=None, keeps_states=False, **limits):
        n_cells = n_cells or 128 * n_slots
        self.backend = Backend(
            n_slots=n_slots, n_ctx_slot=128, n_cells=n_cells, n_batch=64,
            keeps_states=keeps_states, states_alone=limits.get("states_alone", False),
        )  # fmt: skip
        base = {
            "n_slots": n_slots, "n_ctx_slot": 128, "n_cells": n_cells, "token_budget": 64,
            "prefill_chunk": 64, "min_prefix": 8, "cell_bytes": CELL_BYTES, "host_block": 8,
        }  # fmt: skip
        limits = EngineLimits(**(base | limits))
        clock = FakeClock(step_s=0.001)
        self.ends, self.said = {}, {}

        def build(sink):
            self.engine = Engine(self.backend, limits, clock, sink, check_every=1)
            return self.engine, None

        self.loop = EngineLoop(build, clock, self.publish)
        self.loop.start()
        self.loop.wait_open()
        self.files = SlotFiles(self.loop, clock, folder, lambda: model)

    def publish(self, batch):
        for _, event in batch:
            if isinstance(event, Delta):
                self.said[event.request_id] = self.said.get(event.request_id, "") + event.text
            elif isinstance(event, End):
                self.ends[event.request_id].set_result(event)

    def submit(self, name, prompt=PROMPT, *, max_tokens=4, salt=""):
        self.ends[name] = Future()
        self.loop.submit(
            Request(
                request_id=name,
                prompt=tuple(prompt),
                max_tokens=max_tokens,
                cache_salt=salt,
                reply_to="x",
                sampling=SamplingParams(temperature=0.0, ignore_eos=True),
            )
        )

    def run(self, name, prompt=PROMPT, **kwargs):
        self.submit(name, prompt, **kwargs)
        return self.ends[name].result(WAIT_S).stats

    def hold(self, *asked, **kwargs):
        """Submit, and hold the first pass until something else is asked."""
        self.backend.may_go.clear()
        self.backend.begun.clear()
        self.submit(*asked, **kwargs)
        assert self.backend.begun.wait(WAIT_S)
        self.files._loop = Releasing(self)

    def view(self):
        return self.loop.ask(Engine.cache_view).result(WAIT_S)


@pytest.fixture
def make(tmp_path):
    made = []

    def make(folder=tmp_path, **kwargs):
        made.append(Server(folder, **kwargs))
        return made[-1]

    yield make
    for server in made:
        server.backend.may_go.set()
        server.loop.stop()


def saved(server, name="kept"):
    server.run("a")
    return server.files.act("save", 0, name)


def test_what_was_saved_is_there_after_a_restart(make, tmp_path):
    server = make()
    move = saved(server)
    n = len(PROMPT) + 3
    assert (move.slot_id, move.n_tokens, move.filename) == (0, n, "kept")
    assert move.n_bytes == (tmp_path / "kept").stat().st_size > n * CELL_BYTES
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0, "it holds what was asked"
    assert move.seconds > 0
    again = make()
    assert again.files.act("restore", 1, "kept")[:4] == move._replace(slot_id=1)[:4]
    assert [slot.n_tokens for slot in again.view().slots] == [0, n]
    stats = again.run("b", PROMPT + server.said["a"].encode() + b" go on")
    assert (stats.n_cached, stats.cached_from) == (n, "slot")


@pytest.mark.parametrize("alone", [False, True])
def test_a_file_has_the_states_by_which_prompts_begin_with_it(make, alone):
    settings = {"keeps_states": True, "states_alone": alone, "state_bytes": 8, "n_states": 9, "copies": True}
    if alone:
        settings["cell_bytes"] = 0
    server = make(**settings)
    move = saved(server)
    edited = PROMPT + b"?!"  # parts from it where its answer begins
    for name, prompt, n in (
        ("b", PROMPT + server.said["a"].encode() + b" go on", move.n_tokens),
        ("c", edited, len(PROMPT) - 2),
    ):
        again, fresh = make(**settings), make()
        assert again.files.act("restore", 1, "kept").n_tokens == move.n_tokens
        assert again.run(name, prompt).n_cached == n
        fresh.run(name, prompt)
        assert again.said[name] == fresh.said[name]


def test_a_file_keeps_the_salt_of_its_slot(make):
    server = make()
    server.run("a", salt="one")
    server.files.act("save", 0, "kept")
    again = make()
    again.files.act("restore", 0, "kept")
    assert again.run("b", salt="other").n_cached == again.run("c").n_cached == 0
    again.files.act("restore", 0, "kept")
    assert again.run("d", salt="one").n_cached > 0


def test_erasing_leaves_nothing(make):
    server = make()
    server.run("a")
    assert server.files.act("erase", 0, "").n_tokens == len(PROMPT) + 3
    assert server.files.act("erase", 0, "").n_tokens == 0
    assert server.backend._hashes == [[], []]
    assert server.run("b").n_cached == 0


def test_what_a_slot_held_goes_to_host_memory(make):
    server = make(n_slots=1, n_host_cells=1000)
    saved(server)
    server.run("b", bytes(range(40)))
    server.files.act("restore", 0, "kept")
    stats = server.run("c", bytes(range(40)) + b"more")
    assert (stats.n_cached, stats.cached_from) == (40, "host")


def test_others_make_room_for_what_is_restored(make):
    server = make(n_slots=3, n_cells=150, n_host_cells=1000)
    saved(server)
    for i, name in enumerate("bc", 1):
        server.run(name, bytes([i]) * 40)
    assert server.view().kv_cells["n_idle"] > 150 - len(PROMPT)
    server.files.act("restore", 1, "kept")
    view = server.view()
    assert view.kv_cells["n_idle"] <= 150
    assert view.slots[1].n_tokens == len(PROMPT) + 3
    assert view.host["n_tokens"] >= 40


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_a_busy_slot_is_refused_and_nothing_waits(make, action):
    server = make(n_slots=1)
    saved(server)
    server.hold("b")
    with pytest.raises(SlotBusyError):
        server.files.act(action, 0, "kept")
    assert server.ends["b"].result(WAIT_S).error is None


def test_a_prefix_without_room_beside_running_requests_is_refused(make):
    server = make(n_slots=2, n_cells=120)
    saved(server)
    server.hold("b", b"y" * 90, max_tokens=30)
    idle = 1 - server.engine.slots.running[0].slot_id
    with pytest.raises(SlotBusyError, match="no room"):
        server.files.act("restore", idle, "kept")
    assert server.ends["b"].result(WAIT_S).error is None


def test_only_plain_names_are_names(make, tmp_path):
    server = make()
    server.run("a")
    for name in ("", ".", "..", ".kept", "a/b", "/etc/passwd", "a\\b", "a\nb", "C:x", "é" * 101):
        for action in ("save", "restore"):
            with pytest.raises(InvalidParameterError) as refused:
                server.files.act(action, 0, name)
            assert refused.value.param == "filename"
    assert list(tmp_path.iterdir()) == []


def damaged(data):
    at = data.index(b"\n", len(MAGIC)) + 1
    yield "empty", b""
    yield "no-file-of-ours", b"GGUF" + data
    yield "no-head", data[: len(MAGIC)]
    yield "half-a-head", data[: at - 9]
    yield "cut", data[:-1]
    yield "longer", data + b"x"
    yield "a-token-turned", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    yield "a-cell-turned", data[:-2000] + bytes([data[-2000] ^ 1]) + data[-1999:]
    yield "no-tokens", data[: len(MAGIC)] + data[len(MAGIC) : at].replace(b'"n_tokens":59', b'"n_tokens":0')
    yield "an-endless-head", MAGIC + b"x" * 100_000
    yield (
        "no-text",
        data[: len(MAGIC)] + data[len(MAGIC) : at].replace(b'"kind":"', b'"kind":"\xff') + data[at:],
    )


def test_a_damaged_file_is_refused_and_harms_nothing(make, tmp_path):
    server = make()
    saved(server)
    before = server.view()
    kept = dict(damaged((tmp_path / "kept").read_bytes()))
    assert len(kept) == 11
    for name, data in kept.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SlotFileError):
            server.files.act("restore", 1, name)
    with pytest.raises(SlotFileError, match="no file with this name"):
        server.files.act("restore", 1, "other")
    assert server.view() == before
    assert server.run("b").n_cached == len(PROMPT) - 2


def test_files_of_another_model_or_for_longer_slots_are_refused(make):
    saved(make())
    with pytest.raises(SlotFileError, match="another model"):
        make(model="other").files.act("restore", 0, "kept")
    with pytest.raises(SlotFileError, match="slot of 32"):
        make(n_ctx_slot=32).files.act("restore", 0, "kept")
    with pytest.raises(SlotFileError, match="another build"):
        make(cell_bytes=2 * CELL_BYTES).files.act("restore", 0, "kept")
    other = make()
    other.backend.cell_kind = lambda: "cells of another build"
    with pytest.raises(SlotFileError, match="another build"):
        other.files.act("restore", 0, "kept")


@pytest.mark.parametrize("error", [MemoryError(), BackendError("no")])
def test_a_slot_that_cannot_be_copied_is_refused_and_harms_nothing(make, monkeypatch, error):
    server = make()
    saved(server)
    before = server.view()

    def fails(*_):
        raise error

    monkeypatch.setattr(server.backend, "save", fails)
    with pytest.raises(SlotFileError, match="cannot be copied"):
        server.files.act("save", 0, "other")
    assert server.view() == before
    monkeypatch.setattr(server.backend, "restore", fails)
    with pytest.raises(SlotFileError, match="does not take"):
        server.files.act("restore", 1, "kept")
    assert [slot.n_tokens for slot in server.view().slots] == [len(PROMPT) + 3, 0]
    assert server.run("b").n_cached == len(PROMPT) - 2


def test_a_folder_that_takes_no_file_is_said(make, tmp_path):
    server = make(folder=tmp_path / "file" / "slots")
    (tmp_path / "file").touch()
    server.run("a")
    with pytest.raises(SlotFileError, match="Not a directory"):
        server.files.act("save", 0, "kept")


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_without_a_folder_or_cells_the_setting_is_named(make, tmp_path, action):
    with pytest.raises(SlotFilesOffError, match="slot_save_path"):
        make(folder=None).files.act(action, 0, "kept")
    if action == "save":
        server = make(cell_bytes=0)
        server.run("a")
        with pytest.raises(SlotFilesOffError):
            server.files.act(action, 0, "kept")


@pytest.mark.parametrize(
    ("asked", "param"),
    [(("save", 2, "x"), "id_slot"), (("save", 1, "x"), "id_slot"), (("turn", 0, "x"), "action")],
    ids=["no-such-slot", "nothing-in-it", "no-such-action"],
)
def test_what_cannot_be_done_is_refused(make, asked, param):
    server = make()
    server.run("a")
    with pytest.raises(InvalidParameterError) as refused:
        server.files.act(*asked)
    assert refused.value.param == param
