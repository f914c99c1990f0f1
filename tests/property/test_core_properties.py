"""What holds for every plan, text and stop string."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.stopping import StopScanner, TextStream
from tests.views import View


@st.composite
def prompts(draw):
    """Sequences that prefill, in any order of slots."""
    ids = draw(st.permutations(range(draw(st.integers(0, 12)))))
    return [
        View(i, draw(st.integers(0, 50)), draw(st.integers(1, 60)), n_passed=draw(st.integers(0, 60)))
        for i in ids
    ]


bounds = st.builds(
    lambda chunk, extra, order: EngineLimits(
        n_slots=12, n_ctx_slot=200, n_cells=2400, token_budget=12 + extra, prefill_chunk=chunk,
        prefill_order=order,
    ),
    st.integers(1, 40),
    st.integers(0, 60),
    st.sampled_from(["fcfs", "shortest"]),
)  # fmt: skip


def planned(slots, limits, n_streams):
    streams = [View(100 + i, 0, 1) for i in range(n_streams)]
    return Pacer(None).plan(streams, slots, limits).chunks


@given(prompts(), bounds, st.integers(0, 12))
def test_every_plan_keeps_the_rules(slots, limits, n_streams):
    chunks, budget = planned(slots, limits, n_streams), limits.token_budget - n_streams
    plan = {chunk.slot_id: chunk for chunk in chunks}
    assert len(plan) == len(chunks), "at most one chunk per slot"
    assert bool(plan) == bool(slots and budget), "work pending means progress"
    for slot in slots:
        if (chunk := plan.get(slot.slot_id)) is not None:
            assert chunk.start == slot.n_computed
            assert 1 <= chunk.length <= min(slot.n_pending, limits.prefill_chunk)
            assert chunk.sample == (chunk.length == slot.n_pending)
            assert slot.n_pending - chunk.length != 1 or chunk.length == 1, "none is left alone"
    could = min(sum(min(s.n_pending, limits.prefill_chunk) for s in slots), budget)
    n_short = len(slots)  # each may hold back one token, so as to leave none alone
    assert could - n_short <= sum(chunk.length for chunk in chunks) <= could, "no budget is wasted"
    if limits.prefill_order != "shortest":
        assert list(plan) == [slot.slot_id for slot in slots[: len(plan)]], "the oldest prompts move"


@given(st.text(), st.data())
def test_text_survives_any_split_of_its_bytes(text, data):
    raw = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    stream = TextStream()
    edges = [0, *cuts, len(raw)]
    shown = "".join(stream.feed(raw[a:b]) for a, b in pairwise(edges)) + stream.flush()
    assert shown == raw.decode()


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
def test_the_scanner_shows_what_precedes_the_first_stop_and_the_stop_if_asked(pieces, stops, include):
    scanner, shown, so_far, hit = StopScanner(tuple(stops), include=include), "", "", False
    for piece in pieces:
        text, hit = scanner.feed(piece)
        shown += text
        so_far += piece
        assert hit == any(stop in so_far for stop in stops)
        if hit:
            break
        assert not any(stop in shown for stop in stops)
    if hit:
        begin, length = min((so_far.find(s), len(s)) for s in stops if s in so_far)
        assert shown == so_far[: begin + length if include else begin]
    else:
        assert shown + scanner.flush() == so_far
