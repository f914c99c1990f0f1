"""What holds for every batch: how it is laid out, and what is refused."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.batch import TickBatch, check_batch
from cobali_ray.core.plan.plan import Span
from cobali_ray.errors import BackendError, SlotFaultError

N_SLOTS, N_CTX, N_VOCAB = 6, 12, 50


@st.composite
def decodes(draw, n_ctx=N_CTX):
    """(slot_id, position, token) of some slots that decode, in slot order."""
    slots = draw(st.lists(st.integers(0, N_SLOTS - 1), min_size=1, unique=True).map(sorted))
    return [(i, draw(st.integers(1, n_ctx - 1)), draw(st.integers(0, N_VOCAB - 1))) for i in slots]


def known(position, token):
    return array("i", [0] * position + [token])


def placed(rows, batch=None):
    batch = batch or TickBatch(8)
    spans = tuple([Span(i, position, 1, sample=True) for i, position, _ in rows])
    batch.fill(spans, [known(position, token) for _, position, token in rows])
    return batch


def forged(rows):
    """Return a batch of single tokens that no layout would give."""
    batch, n = placed([(0, 1, 1)] * len(rows)), len(rows)
    batch.slot[:n], batch.position[:n], batch.token[:n] = zip(*rows, strict=True)
    batch.spans = tuple([Span(i, position, 1, sample=True) for i, position, _ in rows])
    return batch


@given(decodes(), decodes())
def test_nothing_of_an_earlier_layout_is_left(before, rows):
    batch = placed(rows, placed(before))
    laid_out = zip(batch.slot, batch.position, batch.token, strict=True)
    assert [*laid_out][: batch.n_tokens] == rows
    assert batch.sampled_slots() == [i for i, _, _ in rows]


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=N_SLOTS))
def test_logits_are_wanted_of_as_many_last_tokens_as_a_span_says(data, lengths):
    spans = tuple(Span(i, 0, n, data.draw(st.integers(0, n))) for i, n in enumerate(lengths))
    batch = TickBatch(32)
    batch.output[:] = 1
    batch.fill(spans, [array("i", range(n)) for n in lengths])
    wanted = [flag for _, _, n, sample in spans for flag in [0] * (n - sample) + [1] * sample]
    assert batch.output[: batch.n_tokens].tolist() == wanted
    assert batch.sampled_slots() == [i for i, _, _, sample in spans for _ in range(sample)]
    n_cached = np.zeros(N_SLOTS, np.int32)
    n_rows = check_batch(batch, n_cached, n_ctx_slot=N_CTX, n_batch=32, n_vocab=N_VOCAB)
    assert n_rows == sum(wanted)


def verdict(batch, n_cached):
    try:
        return check_batch(batch, n_cached, n_ctx_slot=N_CTX, n_batch=5, n_vocab=N_VOCAB)
    except (SlotFaultError, BackendError) as error:
        return type(error), str(error)


anything = st.tuples(st.integers(-2, N_SLOTS + 1), st.integers(-2, N_CTX + 2), st.integers(-2, N_VOCAB + 2))


@given(
    rows=st.lists(anything, min_size=1, max_size=7) | decodes(n_ctx=N_CTX + 2),
    wrong=st.lists(st.tuples(st.integers(0, N_SLOTS - 1), st.integers(-2, 2)), max_size=1),
)
def test_what_passes_breaks_no_rule_and_what_does_not_breaks_one(rows, wrong):
    n_cached = np.zeros(N_SLOTS, np.int32)
    for i, position, _ in rows:
        if 0 <= i < N_SLOTS:
            n_cached[i] = max(position, 0)
    for slot_id, more in wrong:
        n_cached[slot_id] += more
    sound = len(rows) <= 5 and len({i for i, *_ in rows}) == len(rows)
    for i, position, token in rows:
        sound &= 0 <= i < N_SLOTS and n_cached[i] == position < N_CTX and 0 <= token < N_VOCAB
    assert (verdict(forged(rows), n_cached) == len(rows)) == sound
