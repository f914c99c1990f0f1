"""Plain or flash attention on real llama.cpp: what is measured, remembered and made of it."""

import json
import random
from array import array
from dataclasses import asdict

import numpy as np
import pytest

from cobali_ray.backend import attention
from cobali_ray.backend.attention import UNREACHABLE_CELLS, AttentionTimes
from cobali_ray.backend.batch import TickBatch
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import Grain

pytestmark = pytest.mark.model

OFF_WINS = AttentionTimes(n_cells=128, on_s=(0.002, 0.02), off_s=(0.001, 0.01), pass_cells=777)
ON_WINS = AttentionTimes(n_cells=128, on_s=(0.001, 0.01), off_s=(0.002, 0.02), pass_cells=777)


@pytest.mark.parametrize(
    ("on_s", "off_s", "off_wins"),
    [
        pytest.param((1, 10), (1, 5), True, id="chunks-in-half-the-time"),
        pytest.param((1, 10), (1.2, 5), True, id="rows-slower-but-chunks-much-faster"),
        pytest.param((1, 10), (1, 9.9), False, id="not-clearly"),
        pytest.param((1, 10), (2, 9), False, id="slower"),
    ],
)
def test_plain_attention_must_be_clearly_faster(on_s, off_s, off_wins):
    assert AttentionTimes(n_cells=64, on_s=on_s, off_s=off_s, pass_cells=1).off_wins is off_wins


@pytest.fixture
def open_tiny(open_tiny):
    """Open backends whose slots are long enough for a choice."""
    return lambda **asked: open_tiny(**({"n_ctx": 2048, "n_slots": 4} | asked))


def test_what_was_measured_is_remembered(open_tiny, tmp_path):
    folder = tmp_path / "not" / "there" / "yet"
    open_tiny(flash_attn="auto", measurements=folder)
    (file,) = folder.iterdir()
    found = json.loads(file.read_bytes())
    assert found["n_cells"] == 1024, "half a slot"
    assert all(0 < t < 1 for t in (*found["on_s"], *found["off_s"]))
    assert 0 < found["pass_cells"] <= UNREACHABLE_CELLS
    written = file.stat().st_mtime_ns
    open_tiny(flash_attn="auto", measurements=folder)
    assert file.stat().st_mtime_ns == written, "not measured again"
    open_tiny(flash_attn="auto", measurements=folder, n_ctx=4096)
    open_tiny(flash_attn="auto", measurements=folder, n_threads=2)
    assert len(list(folder.iterdir())) == 3, "other depths and threads are another matter"


def test_a_busy_moment_decides_nothing(open_tiny, tmp_path, monkeypatch):
    seconds, n_disturbed = attention._Trial.seconds, {}

    def disturbed(trial, n_rows):
        passes = n_disturbed.setdefault((id(trial), n_rows), [])
        passes.append(seconds(trial, n_rows))
        return passes[-1] if len(passes) == 3 else 9.0

    monkeypatch.setattr(attention, "_ENOUGH_S", 0.0)  # as with a large model
    monkeypatch.setattr(attention._Trial, "alone_s", lambda _: 0.01)
    monkeypatch.setattr(attention._Trial, "seconds", disturbed)
    open_tiny(flash_attn="auto", measurements=tmp_path)
    found = json.loads(next(tmp_path.iterdir()).read_bytes())
    assert max(*found["on_s"], *found["off_s"]) < 9


@pytest.fixture
def open_measured(open_tiny, tmp_path):
    """Open backends that find such a measurement."""

    def open_one(found, **changes):
        asked = {"flash_attn": "auto", "measurements": tmp_path} | changes
        open_tiny(**asked)
        for file in tmp_path.iterdir():
            file.write_bytes(found if isinstance(found, bytes) else json.dumps(asdict(found)).encode())
        return open_tiny(**asked)

    return open_one


def test_the_faster_kind_is_used(open_measured):
    assert open_measured(OFF_WINS).grain == Grain(pass_cells=777, beside=1)
    assert open_measured(ON_WINS).grain.step > 1, "tiles of flash attention"


@pytest.mark.parametrize(
    "content",
    [b"{}", b"\xff\xfe", json.dumps(asdict(OFF_WINS)).replace("0.01", "NaN").encode()],
)  # fmt: skip
def test_a_broken_file_is_measured_anew(open_measured, tmp_path, content):
    open_measured(content)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_bytes())["pass_cells"] > 0


@pytest.mark.parametrize(
    "changes", [{"flash_attn": "on"}, {"flash_attn": "off"}, {"unified": True}, {"n_ctx": 2047}]
)
def test_where_nothing_is_to_be_chosen_nothing_is_measured(open_tiny, tmp_path, changes):
    backend = open_tiny(**{"flash_attn": "auto", "measurements": tmp_path} | changes)
    assert not list(tmp_path.iterdir())
    assert backend.grain.pass_cells is None


def test_a_folder_that_cannot_be_written_stops_nobody(open_tiny, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert open_tiny(flash_attn="auto", measurements=tmp_path / "file").n_slots == 4


def logits_of(backend, spans, tokens):
    batch = TickBatch(backend.n_batch)
    batch.fill(tuple(Span(*span) for span in spans), [tokens[span[0]] for span in spans])
    backend.forward(batch)
    return dict(
        zip((s[0] for s in spans if s[3]), backend._read_logits(sum(s[3] for s in spans)), strict=True)
    )


@pytest.mark.parametrize(("found", "same"), [(OFF_WINS, "off"), (ON_WINS, "on")])
def test_it_computes_with_the_faster_kind(open_measured, open_tiny, found, same):
    rng = random.Random(0)
    tokens = [array("i", [rng.randrange(8, 4000) for _ in range(200)])]

    def logits(backend):
        return logits_of(backend, [(0, 0, 200, True)], tokens)[0].copy()

    ours = logits(open_measured(found))
    for kind in ("on", "off"):
        assert np.array_equal(ours, logits(open_tiny(flash_attn=kind))) == (kind == same)


def test_slots_in_falling_runs_are_computed_apart(open_measured):
    # Behind a decode token, a chunk is computed as one token and the rest. Most processors round that
    # differently, so that a chunk in the wrong place shows; on the others this test proves little.
    backend = open_measured(OFF_WINS)
    rng = random.Random(0)
    tokens = [array("i", [rng.randrange(8, 4000) for _ in range(700)]) for _ in range(3)]
    before = [(0, 0, 250, False), (1, 0, 60, False), (2, 0, 8, False)]
    chunk = (2, 8, 100, True)

    def after(*spans):
        backend.clear()
        logits_of(backend, before[:1], tokens)
        logits_of(backend, before[1:], tokens)
        return {i: row.copy() for i, row in logits_of(backend, spans, tokens).items()}

    streams = [(0, 250, 1, True), (1, 60, 1, True)]
    alone, pair = after(chunk)[2], after(*streams)
    apart = after(chunk, *streams)
    assert np.array_equal(apart[2], alone)
    assert np.array_equal(apart[0], pair[0])
    assert np.array_equal(apart[1], pair[1])
    cut = after((1, 60, 1, True), (0, 250, 1, True))
    np.testing.assert_allclose(cut[1], pair[1], atol=1e-3)
    assert np.array_equal(cut[0], after((0, 250, 1, True))[0])
