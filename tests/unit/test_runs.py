"""Which slots share a micro-batch where its rows pay for the deepest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.cost.runs import CELL_STEP, Row, cells_of, runs_of
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Span, lay_out
from cobali_ray.core.request.limits import EngineLimits, Grain
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence

PASS = 10_000


def streams(*depths, first=0):
    return [Row(first + i, depth) for i, depth in enumerate(depths)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(streams(200, 210, 220), [[0, 1, 2]], id="like-depths-stay-together"),
        pytest.param(streams(*[200] * 15, 4096), [[*range(15)], [15]], id="a-deep-one-at-the-end-is-apart"),
        pytest.param(streams(*[200] * 7, 4096, *[200] * 8), [[*range(7)], [7], [*range(8, 16)]],
            id="in-the-middle-too"),
        pytest.param(streams(200, 200, 4096), [[0, 1, 2]], id="two-passes-cost-more-than-few-rows-pay"),
        pytest.param(streams(*[200] * 8, *[4096] * 8), [[*range(8)], [*range(8, 16)]], id="two-groups"),
        pytest.param([Row(0, 200), Row(2, 200)], [[0], [1]], id="a-gap-parts-anyway"),
        pytest.param([*streams(200, 200), Row(2, 100, chunk=True)], [[0, 1], [2]], id="a-chunk-above"),
        pytest.param([Row(0, 100, chunk=True), *streams(200, first=1)], [[0], [1]], id="a-chunk-below"),
        pytest.param([*streams(200, 200), Row(2, 300, chunk=True), *streams(200, first=3)], [[0, 1, 2, 3]],
            id="a-shallow-chunk-between-streams-saves-a-pass"),
        pytest.param([*streams(*[200] * 7), Row(7, 4096, chunk=True), *streams(*[200] * 8, first=8)],
            [[*range(7)], [7], [*range(8, 16)]], id="a-deep-chunk-between-streams-is-worth-one"),
        pytest.param([Row(0, 100, chunk=True), Row(1, 900, chunk=True), *streams(200, first=2)],
            [[0, 1], [2]], id="chunks-side-by-side-stay-together"),
        pytest.param([], [], id="nothing"),
    ],
)  # fmt: skip
def test_runs(rows, expected):
    assert runs_of(rows, PASS) == expected


def test_streams_pay_for_the_deepest_of_their_run():
    rows = streams(*[200] * 7, 4000, *[200] * 8)
    assert cells_of(rows, [[*range(16)]]) == 16 * 4096
    assert cells_of(rows, runs_of(rows, PASS)) == 15 * CELL_STEP + 4096
    chunk = [*streams(200, 300), Row(2, 4000, chunk=True)]
    assert cells_of(chunk, [[0, 1], [2]]) == 2 * 512, "a chunk's cells are its own affair"
    assert cells_of(chunk, [[0, 1, 2]]) == 2 * 4096


@st.composite
def some_rows(draw):
    slots = sorted(draw(st.sets(st.integers(0, 40), max_size=20)))
    return [Row(i, draw(st.integers(1, 9000)), draw(st.booleans())) for i in slots]


@given(some_rows(), st.integers(1, 50_000))
def test_runs_are_neighbours_and_cost_no_more_than_llama_cpps_own(rows, pass_cells):
    runs = runs_of(rows, pass_cells)
    assert [place for run in runs for place in run] == list(range(len(rows)))
    for run in runs:
        assert rows[run[-1]].seq_id - rows[run[0]].seq_id == len(run) - 1
    if not any(row.chunk for row in rows):
        own = runs_of(rows, 1 << 60)
        ours = cells_of(rows, runs) + pass_cells * len(runs)
        assert ours <= cells_of(rows, own) + pass_cells * len(own)


DEAR = Grain(pass_cells=2000)


def sequence(slot_id, n_tokens, *, decoding=True, seq_id=None):
    made = Sequence(Request(request_id=str(slot_id), prompt=(1,) * n_tokens, max_tokens=9), arrived_s=0.0)
    made.slot_id, made.decoding = slot_id, decoding
    made.seq_id = slot_id if seq_id is None else seq_id
    return made


def test_a_batch_is_laid_out_in_falling_runs():
    by_slot = [sequence(i, 4000 if i == 2 else 100) for i in range(6)]
    by_slot[4] = sequence(4, 3000, decoding=False)
    decoding = [s for s in by_slot if s.decoding]
    plan = lay_out(decoding, [Span(4, 0, 50, sample=True)], by_slot, DEAR)
    assert [span.slot_id for span in plan.spans] == [5, 4, 3, 2, 0, 1]
    assert plan.rows == (5, 4, 3, 2, 0, 1)
    assert plan.streams == (5, 3, 2, 0, 1)
    alone = lay_out(decoding, [], by_slot, DEAR)
    assert alone.rows == tuple([span.slot_id for span in alone.spans])
    assert alone.rows == (5, 3, 2, 0, 1)
    assert alone.context == 4 * 256 + 4096
    unknown = lay_out(decoding, [Span(4, 0, 50, sample=True)], by_slot)
    assert [span.slot_id for span in unknown.spans] == list(range(6)), "by id where it is all the same"


def test_a_batch_is_laid_out_by_sequence_id_and_not_by_slot():
    by_slot = [sequence(i, 100, seq_id=seq_id) for i, seq_id in enumerate([3, 0, 2, 1])]
    by_slot[2].decoding = False
    decoding = [by_slot[1], by_slot[3], by_slot[0]]
    chunk = Span(2, 0, 50, sample=True)
    assert [span.slot_id for span in lay_out(decoding, [chunk], by_slot).spans] == [1, 3, 2, 0]
    by_slot[1] = decoding[0] = sequence(1, 4000, seq_id=0)
    assert lay_out(decoding, [], by_slot, DEAR).rows == (0, 3, 1), "falling"


@pytest.mark.parametrize(
    ("prompts", "order"),
    [
        pytest.param((4, 5), [4, 5, 0, 1, 2, 3], id="above"),
        pytest.param((0, 1), [2, 3, 4, 5, 0, 1], id="below"),
        pytest.param((2,), [0, 1, 2, 3, 4, 5], id="between, where they would part the streams"),
    ],
)
def test_with_tiles_no_token_of_a_prompt_goes_with_the_streams(prompts, order):
    by_slot = [sequence(i, 100, decoding=i not in prompts) for i in range(6)]
    decoding = [s for s in by_slot if s.decoding]
    chunks = [Span(i, 0, 64, sample=True) for i in prompts]
    plan = lay_out(decoding, chunks, by_slot, Grain(step=64, least=64, beside=1))
    assert [span.slot_id for span in plan.spans] == order
    assert plan.rows == tuple(order)
    assert plan.context is None
    assert [span.slot_id for span in lay_out([], chunks, by_slot, Grain(step=64)).spans] == list(prompts)


def test_the_pacer_knows_what_a_deep_stream_costs_the_others():
    grain = Grain(pass_cells=1 << 40)
    limits = EngineLimits(n_slots=16, n_ctx_slot=9000, n_cells=144_000, token_budget=528, prefill_chunk=512,
                          grain=grain)  # fmt: skip
    lengths = {}
    for deep in (200, 8000):
        pacer = Pacer(0.2, grain)
        for n in range(40):
            cells = 2000 + 1000 * n
            pacer.model.learn(pacer_shape(15, cells), 0.01 + 1e-6 * cells)
            pacer.model.learn(pacer_shape(15, 2000, (0, 50 + n)), 0.012 + 1e-3 * (50 + n))
        running = [sequence(i, 200) for i in range(14)] + [sequence(14, deep)]
        (chunk,) = pacer.plan(running, [sequence(15, 4000, decoding=False)], limits).chunks
        lengths[deep] = chunk.length
    assert lengths[8000] < lengths[200] / 2


def pacer_shape(n_decode, cells, *chunks):
    return TickShape(n_decode, cells, tuple(chunks))
