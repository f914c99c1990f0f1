"""LlamaBackend on real llama.cpp: what it computes, what it refuses, and that it lives on afterwards."""

import random
import resource
from array import array
from pathlib import Path

import numpy as np
import pytest
import structlog

from cobali_ray.backend import memory
from cobali_ray.backend.batch import TickBatch, by_length
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import GREEDY
from cobali_ray.errors import BackendError, CacheFullError, ConfigError, ModelNotFoundError, SlotFaultError

pytestmark = pytest.mark.model

N_VOCAB = 4096


def prompt(seed, length):
    rng = random.Random(seed)
    return array("i", [rng.randrange(8, 4000) for _ in range(length)])


class Bench:
    """A backend and one input buffer; `step` computes spans of known sequences and returns their logits."""

    def __init__(self, backend, sequences):
        self.backend, self.sequences = backend, sequences
        self.batch = TickBatch(backend.n_batch)

    def lay(self, *spans):
        self.batch.fill(tuple(Span(*s) for s in spans), [self.sequences[s[0] % 4] for s in spans])
        return self.batch

    def step(self, *spans):
        self.backend.forward(self.lay(*spans))
        logits = self.backend._logits
        return (self.backend._read_logits(sum(s[3] for s in spans)) if logits is None else logits).copy()

    def held(self, slot_id):
        return self.backend._lc.llama_memory_seq_pos_max(self.backend._memory, slot_id) + 1


@pytest.fixture
def bench(open_tiny):
    return Bench(open_tiny(), [prompt(seed, 300) for seed in range(4)])


def sampler():
    return RowSampler(GREEDY, (), end_tokens=frozenset(), n_vocab=N_VOCAB)


def test_what_is_opened_is_what_was_asked(open_tiny):
    backend = open_tiny(n_ctx=300)
    assert (backend.n_slots, backend.n_vocab, backend.n_batch, backend.n_ctx_slot) == (4, N_VOCAB, 256, 300)
    assert not backend.overlaps, "a CPU has computed when forward returns"
    assert backend.cuts_tails
    assert backend.n_cells == 4 * 512, "llama.cpp pads a slot to 256 cells"
    backend.close()
    backend.close()  # and once more by the fixture: closing again is fine


BAD_SPANS = {
    "slot-out-of-range": ([(0, 10, 1, True), (4, 0, 1, True)], BackendError),
    "negative-slot": ([(-1, 0, 1, True)], BackendError),
    "slot-twice": ([(0, 10, 1, True), (0, 11, 1, True)], BackendError),
    "slot-twice-apart": ([(0, 10, 1, True), (1, 0, 1, True), (0, 10, 1, True)], BackendError),
    "gap": ([(0, 11, 1, True)], SlotFaultError),
    "position-again": ([(0, 9, 1, True)], SlotFaultError),
    "empty-slot-in-the-middle": ([(1, 5, 3, True)], SlotFaultError),
    "empty-span": ([(2, 0, 250, False), (3, 0, 0, True)], SlotFaultError),
    "nothing": ([], BackendError),
}


@pytest.mark.parametrize(("spans", "error"), BAD_SPANS.values(), ids=BAD_SPANS.keys())
def test_a_batch_that_breaks_a_rule_is_refused_and_the_backend_lives(bench, spans, error):
    expected = bench.step((0, 0, 10, True), (1, 0, 1, True))[0]
    bench.backend.clear()
    bench.step((0, 0, 10, True))
    with pytest.raises(error):
        bench.backend.forward(bench.lay(*spans))
    assert [bench.held(i) for i in range(4)] == [10, 0, 0, 0], "nothing was computed"
    bench.backend.clear()
    assert np.array_equal(bench.step((0, 0, 10, True))[0], expected)


def test_more_tokens_than_fit_are_refused(open_tiny):
    bench = Bench(open_tiny(n_batch=64, n_ctx=40), [prompt(seed, 300) for seed in range(4)])
    bench.batch = TickBatch(512)
    with pytest.raises(SlotFaultError, match="slot 1: 41 tokens at 0 in a slot of 40"):
        bench.backend.forward(bench.lay((1, 0, 41, True)))
    with pytest.raises(BackendError, match="64 allowed"):
        bench.backend.forward(bench.lay((0, 0, 40, True), (1, 0, 25, True)))
    assert bench.step((0, 0, 40, True)).shape == (1, N_VOCAB)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31 - 1])
def test_a_token_outside_the_vocabulary_names_its_slot(bench, token):
    bench.sequences[1] = array("i", [1, 2, token])
    with pytest.raises(SlotFaultError) as caught:
        bench.backend.forward(bench.lay((0, 0, 3, True), (1, 0, 3, True)))
    assert caught.value.slot_id == 1
    assert bench.held(0) == bench.held(1) == 0


def test_only_computed_rows_are_sampled(bench):
    backend = bench.backend
    with pytest.raises(BackendError, match="1 rows to sample, 0 computed"):
        backend.sample([sampler()])
    bench.step((0, 0, 5, True), (1, 0, 5, False))
    with pytest.raises(BackendError, match="2 rows to sample, 1 computed"):
        backend.sample([sampler(), sampler()])
    assert len(backend.sample([sampler()]).tokens) == 1
    with pytest.raises(SlotFaultError):
        backend.forward(bench.lay((0, 0, 5, True)))


def test_greedy_sampling_takes_the_likeliest_of_each_row(bench):
    logits = bench.step((0, 0, 20, True), (1, 0, 9, False), (3, 0, 7, True))
    bench.backend.clear()
    bench.step((0, 0, 20, True), (1, 0, 9, False), (3, 0, 7, True))
    assert bench.backend.sample([sampler(), sampler()]).tokens == logits.argmax(axis=1).tolist()


def test_positions_beyond_two_bytes_are_laid_out():
    batch = TickBatch(8)
    batch.fill((Span(0, 70_000, 3, True),), [array("i", [7]) * 70_003])
    assert batch.position[:3].tolist() == [70_000, 70_001, 70_002]


def test_a_mixed_batch_gives_what_each_slot_gives_alone(open_tiny):
    # Slot 1's ninth token, computed alone in its slot, rounds differently from the same token in a chunk.
    rng = random.Random(0)
    long = [[rng.randrange(8, 4000) for _ in range(700)] for _ in range(3)]
    bench = Bench(open_tiny(), [array("i", tokens) for tokens in (long[0], long[2], long[1])])
    alone = bench.step((1, 0, 8, False), (2, 0, 8, False)), bench.step((1, 8, 100, True))[0]
    bench.backend.clear()
    bench.step((0, 0, 9, False), (1, 0, 8, False))
    mixed = bench.step((0, 9, 1, True), (1, 8, 100, True), (2, 0, 30, True))
    assert np.array_equal(mixed[1], alone[1])


def test_by_length_keeps_each_span_once_and_in_order():
    spans = [Span(i, 0, length, True) for i, length in enumerate([5, 1, 7, 1, 5])]
    assert by_length(spans) == [[1, 3], [0, 4], [2]]


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
def test_a_cut_tail_computed_again_gives_the_same_logits(open_tiny, unified):
    bench = Bench(open_tiny(unified=unified), [prompt(seed, 300) for seed in range(4)])
    whole = bench.step((2, 0, 61, True))[0]
    for n_keep in (0, 1, 17, 59):
        bench.backend.truncate(2, n_keep)
        assert bench.held(2) == n_keep
        assert np.array_equal(bench.step((2, n_keep, 61 - n_keep, True))[0], whole)


def drafting(open_tiny, **changes):
    bench = Bench(open_tiny(speculation=True, **changes), [prompt(seed, 300) for seed in range(4)])
    bench.step((0, 0, 60, True), (1, 0, 40, True))
    return bench


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
def test_the_rows_of_a_draft_are_those_of_its_tokens_one_by_one(open_tiny, unified):
    bench = drafting(open_tiny, unified=unified, flash_attn="on")
    assert bench.backend.max_draft == 15
    together = bench.step((0, 60, 6, 6), (1, 40, 1, 1))
    bench.backend.truncate(0, 60)
    bench.backend.truncate(1, 40)
    alone = [bench.step((0, 60 + i, 1, 1))[0] for i in range(6)]
    alone.append(bench.step((1, 40, 1, 1))[0])
    spread = max(float(np.std(row)) for row in alone)
    assert np.abs(together - np.array(alone)).max() < 0.1 * spread, "but for rounding"


def test_a_draft_is_taken_as_far_as_it_is_right_and_the_rest_is_forgotten(open_tiny):
    bench = drafting(open_tiny, flash_attn="on")
    bench.sequences[0] = known = bench.sequences[0][:61]
    for at in (60, 61, 62):  # what the model says, token by token
        known.append(int(bench.step((0, at, 1, 1))[0].argmax()))
    said = known[61:]
    bench.backend.truncate(0, 60)
    bench.sequences[0] = array("i", [*known[:63], (said[2] + 1) % N_VOCAB, 9])
    bench.backend.forward(bench.lay((0, 60, 5, 5)))
    drawn = bench.backend.sample([sampler()], [list(bench.sequences[0][61:])])
    assert drawn.n_each == [3]
    assert drawn.tokens == said.tolist()
    bench.backend.truncate(0, 63)
    assert bench.held(0) == 63
    with pytest.raises(BackendError):
        bench.backend.sample([sampler()], [[1, 2]])


def test_nothing_is_drafted_where_answers_are_to_be_reproducible(open_tiny):
    assert open_tiny(speculation=True, flash_attn="off").max_draft == 0
    assert open_tiny(speculation=True, flash_attn="off", unified=True).max_draft == 15
    assert open_tiny(flash_attn="on").max_draft == 0


COPIED = [
    pytest.param({"flash_attn": "off"}, id="plain-attention"),
    pytest.param({"flash_attn": "on", "type_k": "q8_0", "type_v": "q4_0"}, id="quantised"),
    *(
        pytest.param(how, id=name, marks=pytest.mark.thorough)
        for name, how in {
            "flash-attention": {"flash_attn": "on"},
            "bf16": {"flash_attn": "on", "type_k": "bf16", "type_v": "bf16"},
            "quantised-keys": {"flash_attn": "off", "type_k": "q5_1"},
        }.items()
    ),
]


@pytest.mark.parametrize("how", COPIED)
def test_a_copied_prefix_gives_the_logits_of_one_that_was_computed(open_tiny, how):
    bench = Bench(open_tiny(**how), [prompt(seed, 300) for seed in range(4)])
    for n_keep in (1, 40, 100):
        bench.backend.clear()
        a_copy_is_as_good(bench, n_keep)


def a_copy_is_as_good(bench, n_keep):
    bench.sequences[1] = prompt(1, 300)
    bench.step((2, 0, 100, True))
    bench.backend.truncate(2, n_keep)
    whole = bench.step((2, n_keep, 50, True))[0]
    bench.backend.clear()
    bench.sequences[1] = bench.sequences[2]
    donor = bench.step((1, 0, 100, True)), bench.step((1, 100, 1, True))
    assert bench.backend.copies
    bench.backend.copy(1, 2, n_keep)
    assert (bench.held(1), bench.held(2)) == (101, n_keep)
    assert np.array_equal(bench.step((2, n_keep, 50, True))[0], whole)
    after = bench.step((1, 101, 1, True))
    bench.backend.clear()
    assert np.array_equal(bench.step((1, 0, 100, True)), donor[0])
    assert np.array_equal(bench.step((1, 100, 1, True)), donor[1])
    assert np.array_equal(bench.step((1, 101, 1, True)), after), "the donor goes on as if nothing had been"


def test_a_copy_that_would_mix_two_sequences_is_refused(bench):
    bench.step((0, 0, 12, True), (1, 0, 12, True))
    for donor_id, slot_id, n_keep in ((0, 1, 4), (0, 0, 4), (0, 2, 13), (3, 2, 1), (0, 2, 0)):
        with pytest.raises(BackendError):
            bench.backend.copy(donor_id, slot_id, n_keep)
    assert [bench.held(i) for i in range(4)] == [12, 12, 0, 0]


def test_copies_in_a_unified_cache_take_no_cells(open_tiny):
    bench = Bench(open_tiny(unified=True, kv_cells=256), [prompt(seed, 300) for seed in range(4)])
    backend = bench.backend
    assert (backend.copies, backend.shares, backend.dense) == (True, True, False)
    bench.step((0, 0, 200, True))
    alone = bench.step((0, 200, 1, True))[0]
    backend.clear()
    bench.step((0, 0, 200, True))
    bench.sequences[1:] = [bench.sequences[0]] * 3
    for slot_id in (1, 2, 3):
        backend.copy(0, slot_id, 200)
    backend.truncate(0, 0)  # whoever computed them may go
    backend.truncate(1, 150)
    for row in bench.step(*((slot_id, 200, 1, True) for slot_id in (2, 3))):
        np.testing.assert_allclose(row, alone, atol=0.02)
    assert [bench.held(i) for i in range(4)] == [0, 150, 201, 201]
    bench.step((1, 150, 50, True))  # 252 cells in all
    with pytest.raises(CacheFullError):
        bench.step((0, 0, 5, True))


def saved_in_blocks(backend, slot_id, n):
    return backend.save(slot_id, [(start, min(start + 64, n)) for start in range(0, n, 64)])


PLAIN, FLASH, SHARED = {"flash_attn": "off"}, {"flash_attn": "on"}, {"flash_attn": "on", "unified": True}
OTHER_TYPES = [
    ("q8_0", "k", PLAIN), ("bf16", "both", PLAIN), ("q8_0", "k", FLASH), ("q4_0", "v", FLASH),
    ("q8_0", "v", SHARED), ("bf16", "both", SHARED),
]  # fmt: skip
OTHER_TYPES += [
    pytest.param(kind, "both", FLASH, marks=pytest.mark.thorough)
    for kind in ("bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
]


@pytest.mark.parametrize(("kind", "asked", "how"), OTHER_TYPES)
def test_cells_of_other_types_are_cut_and_restored_too(open_tiny, kind, asked, how):
    types = {"type_k": "f16" if asked == "v" else kind, "type_v": "f16" if asked == "k" else kind}
    backend = open_tiny(**how, **types)
    n_bytes = sum(memory.number_bytes(4 * 2 * 64, one) for one in types.values())
    assert backend.measure_cell() == n_bytes < 2048 + (kind == "bf16")
    bench = Bench(backend, [prompt(seed, 300) for seed in range(4)])
    bench.step((2, 0, 191, True))
    cells = saved_in_blocks(backend, 2, 191)
    backend.truncate(2, 150)
    whole = bench.step((2, 150, 50, True))[0]
    bench.sequences[1] = bench.sequences[2]
    backend.restore(1, cells, 150)
    logits = bench.step((1, 150, 50, True))[0]
    if how is SHARED:
        assert np.allclose(logits, whole, atol=0.2)
    else:
        assert np.array_equal(logits, whole)


def test_quantised_values_choose_flash_attention(open_tiny):
    backend = open_tiny(type_v="q8_0", flash_attn="auto")
    assert backend.measure_cell() == 1024 + 544
    assert backend.grain.pass_cells is None, "nothing was measured"
    with pytest.raises(ConfigError, match=r"type_v: q8_0 needs flash_attn"):
        open_tiny(type_v="q8_0", flash_attn="off")


def test_cells_that_are_computed_otherwise_are_of_another_kind(open_tiny):
    def kind_of(**how):
        backend = open_tiny(**how)
        backend.measure_cell()
        return backend.cell_kind()

    ours = kind_of()
    assert kind_of(n_slots=2, n_ctx=256) == ours
    others = {kind_of(**how) for how in ({"flash_attn": "on"}, {"unified": True}, {"type_k": "q8_0"})}
    assert len(others - {ours}) == 3


def test_types_that_are_slow_on_a_cpu_are_told(open_tiny):
    with structlog.testing.capture_logs() as logs:
        open_tiny()
        open_tiny(type_k="q8_0", flash_attn="off")
        open_tiny(type_k="q8_0", flash_attn="on")
        open_tiny(type_v="q8_0", flash_attn="auto")
    assert [log["setting"] for log in logs if log["event"] == "slow_cells"] == ["type_k", "type_v"]


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_restored_cells_give_the_logits_of_computed_ones(open_tiny, unified, flash_attn):
    backend = open_tiny(unified=unified, flash_attn=flash_attn)
    bench = Bench(backend, [prompt(seed, 300) for seed in range(4)])
    assert backend.measure_cell() == 2048, "4 layers of keys and values, 128 f16 each"
    assert bench.held(0) == 0
    bench.sequences[1] = bench.sequences[2]
    for n_keep in (1, 64, 150):
        backend.clear()
        what_is_restored_is_as_good(bench, n_keep, unified=unified)


def what_is_restored_is_as_good(bench, n_keep, *, unified):
    backend = bench.backend
    bench.step((2, 0, 191, True))
    cells = saved_in_blocks(backend, 2, 191)
    assert sum(block.nbytes for block in cells) == 191 * 2048
    backend.truncate(2, n_keep)
    whole = bench.step((2, n_keep, 50, True))[0]
    bench.step((3, 0, 100, True))
    neighbour = saved_in_blocks(backend, 3, 100)
    backend.restore(1, cells, n_keep)
    assert (bench.held(1), bench.held(2)) == (n_keep, n_keep + 50)
    again = saved_in_blocks(backend, 1, n_keep)
    assert np.concatenate(again).nbytes == n_keep * 2048
    assert all(np.array_equal(a, b) for a, b in zip(again[:-1], cells, strict=False))
    assert all(map(np.array_equal, saved_in_blocks(backend, 3, 100), neighbour))
    logits = bench.step((1, n_keep, 50, True))[0]
    if unified:  # where sums go over the cells of others too
        assert np.allclose(logits, whole, atol=0.2)
    else:
        assert np.array_equal(logits, whole)
    backend.truncate(2, 0)
    backend.restore(2, cells, n_keep)
    assert bench.held(2) == n_keep, "and once more, where it was"


def test_cells_of_a_shared_pool_are_saved_in_their_order(open_tiny):
    """What was computed in the holes that others left lies in the cache in another order."""
    bench = Bench(open_tiny(unified=True, kv_cells=512), [prompt(seed, 300) for seed in range(4)])
    backend = bench.backend
    backend.measure_cell()
    for start in range(0, 120, 20):
        bench.step((0, start, 20, False), (1, start, 20, False))
    backend.truncate(0, 20)
    bench.step((1, 120, 130, True))
    places = backend._read_state(1)[16 : 16 + 250 * 12].view(np.int32)[::3]
    assert (np.diff(places) < 0).any(), "or this shows nothing"
    cells = saved_in_blocks(backend, 1, 250)
    backend.clear()
    whole = bench.step((1, 0, 125, True))
    backend.clear()
    backend.restore(1, cells, 124)  # of all of them, the order would not matter
    assert np.allclose(bench.step((1, 124, 1, True)), whole, atol=0.2)


def test_cells_that_cannot_be_are_not_moved(bench):
    backend = bench.backend
    with pytest.raises(BackendError):
        backend.save(0, [(0, 1)])
    backend.measure_cell()
    bench.step((0, 0, 12, True), (1, 0, 12, True))
    for spans in ([(0, 13)], [(4, 4)], [(-1, 3)]):
        with pytest.raises(BackendError):
            backend.save(0, spans)
    cells = backend.save(0, [(0, 8), (8, 12)])
    for slot_id, n_keep in ((1, 4), (2, 13), (2, 0)):
        with pytest.raises(BackendError):
            backend.restore(slot_id, cells, n_keep)
    assert [bench.held(i) for i in range(4)] == [12, 12, 0, 0]


def test_a_full_pool_takes_no_cells_back_and_lives_on(open_tiny):
    bench = Bench(open_tiny(unified=True, kv_cells=256), [prompt(seed, 300) for seed in range(4)])
    backend = bench.backend
    backend.measure_cell()
    bench.step((0, 0, 200, True))
    cells = backend.save(0, [(0, 200)])
    with pytest.raises(BackendError, match="takes no 200 saved tokens"):
        backend.restore(1, cells, 200)
    assert (bench.held(0), bench.held(1)) == (200, 0)
    backend.restore(1, cells, 50)
    bench.step((0, 200, 1, True), (1, 50, 1, True))


def test_a_state_that_is_written_otherwise_is_not_taken_apart(open_tiny, monkeypatch):
    read = LlamaBackend._read_state
    for change in (
        lambda state: np.append(state, state[-4:]),
        lambda state: np.append(state[:20], state[16:]),
        lambda state: np.append(state, state),
        lambda state: state[:-4],
        lambda state: np.concatenate([state[:12], np.zeros(4, np.uint8), state[16:]]),
        lambda state: np.concatenate([state[:16], state[28:40], state[16:28], state[40:]]),
    ):
        monkeypatch.setattr(LlamaBackend, "_read_state", lambda *a, change=change: change(read(*a)))
        backend = open_tiny()
        assert backend.measure_cell() == 0
    monkeypatch.undo()
    monkeypatch.setattr("llama_cpp.llama_model_is_recurrent", lambda _model: True)
    assert open_tiny().measure_cell() == 0


def test_truncate_and_clear_reach_only_what_they_name(bench):
    backend = bench.backend
    bench.step((0, 0, 12, False), (1, 0, 12, False), (3, 0, 12, True))
    backend.truncate(1, 12)
    backend.truncate(0, 4)
    backend.truncate(3, 0)
    assert [bench.held(i) for i in range(4)] == [4, 12, 0, 0]
    for slot_id, n_keep in ((0, 5), (1, -1), (2, 1), (-1, 0), (4, 0), (300, 0)):
        with pytest.raises(BackendError):
            backend.truncate(slot_id, n_keep)
    assert [bench.held(i) for i in range(4)] == [4, 12, 0, 0]
    backend.clear()
    assert [bench.held(i) for i in range(4)] == [0, 0, 0, 0]


def test_a_full_unified_cache_says_so_and_changes_nothing(open_tiny):
    bench = Bench(open_tiny(unified=True, kv_cells=256), [prompt(seed, 300) for seed in range(4)])
    bench.step((0, 0, 200, True))
    with pytest.raises(CacheFullError):
        bench.backend.forward(bench.lay((0, 200, 1, True), (1, 0, 56, True)))
    assert (bench.held(0), bench.held(1)) == (200, 0)
    with pytest.raises(BackendError, match="0 computed"):
        bench.backend.sample([sampler()])
    bench.step((0, 200, 1, True), (1, 0, 55, True))
    with pytest.raises(CacheFullError):
        bench.backend.forward(bench.lay((0, 201, 1, True)))
    bench.backend.truncate(1, 0)
    bench.step((0, 201, 1, True))
    assert bench.held(0) == 202


def test_graphs_are_reused_while_batches_keep_their_shape(bench):
    bench.step(*((i, 0, 20, False) for i in range(4)))
    before = bench.backend.n_reused()
    for position in range(20, 40):
        bench.step(*((i, position, 1, True) for i in range(4)))
    assert bench.backend.n_reused() - before >= 15


TOO_MUCH = {
    "one-huge-slot": ({"n_slots": 1, "n_ctx": 2_000_000_000}, "n_ctx"),
    "many-large-slots": ({"n_slots": 256, "n_ctx": 4_000_000}, "n_ctx"),
    "past-32-bits": ({"n_slots": 2, "n_ctx": 2**31 + 8}, "n_ctx"),
    "no-slots": ({"n_slots": 0}, "n_slots"),
    "too-many-slots": ({"n_slots": 257, "n_batch": 512}, "n_slots"),
    "batch-below-slots": ({"n_slots": 16, "n_batch": 15}, "token_budget"),
    "batch-above-cells": ({"unified": True, "kv_cells": 128}, "token_budget"),
}


@pytest.mark.parametrize(("changes", "setting"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_sizes_that_cannot_be_name_the_setting(open_tiny, changes, setting):
    with pytest.raises(ConfigError) as caught:
        open_tiny(**changes)
    assert caught.value.setting == setting


def test_an_allocation_that_fails_tells_llama_cpps_reason(tiny, log_heard):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    config = LlamaConfig(path=tiny, n_slots=1, n_ctx=1_000_000, n_batch=64, n_threads=1)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (300 << 20), hard))
    try:
        with pytest.raises(ConfigError, match=r"1000000.*(buffer|bad_alloc|free)"):
            LlamaBackend(config)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


BROKEN = {
    "missing": (None, "No such file"),
    "empty": (lambda _: b"", "failed to read magic"),
    "no-gguf": (lambda data: b"XXXX" + data[4:], "invalid magic"),
    "cut-in-the-header": (lambda data: data[:100_000], "failed to read key-value pairs"),
    "cut-in-the-weights": (lambda data: data[: len(data) // 2], "not within the file bounds"),
    "garbled": (lambda data: data[:64] + bytes(range(256)) * 9 + data[2368:], "exceeds maximum"),
}


@pytest.mark.parametrize(("damage", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_model_file_is_an_error_with_its_reason(tiny, tmp_path, log_heard, damage, reason):
    path = tmp_path / "broken.gguf"
    if damage:
        path.write_bytes(damage(tiny.read_bytes()))
    with pytest.raises(ModelNotFoundError, match=reason):
        LlamaBackend(LlamaConfig(path=path, n_slots=1, n_ctx=64, n_batch=64, n_threads=1))
