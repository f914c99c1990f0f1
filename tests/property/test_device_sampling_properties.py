"""Sampling from the likeliest tokens of a row against sampling from the row, token for token."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from test_sampling_properties import chains, rows

from cobali_ray.backend.row_sampler import RowSampler, SamplingPath
from cobali_ray.backend.sampling import sample_rows
from cobali_ray.backend.sampling_top import sample_candidates

N_TICKS = 3
END_TOKENS = frozenset({0, 11})


@st.composite
def requests(draw, n_vocab):
    """What can be sampled from candidates, and some that cannot: `suffices` tells them apart."""
    token = st.integers(0, n_vocab - 1)
    lowered = st.tuples(token, st.sampled_from([-100.0, -2.0, -0.5, 0.0]))
    more = {
        "top_k": draw(st.sampled_from([0, 1, 2, 15, 16, 17, 40, 63, 64, 100, 126, 127, 128])),
        "min_tokens": draw(st.sampled_from([0, 0, 2])),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
        "logit_bias": tuple(draw(st.lists(lowered, max_size=3))),
        "stop_token_ids": tuple(draw(st.lists(token, max_size=2))),
        "bad_words": tuple(draw(st.lists(st.lists(token, min_size=1, max_size=2).map(tuple), max_size=3))),
    }
    if draw(st.booleans()):
        more["temperature"] = 0.0
    return draw(chains(**more))


def made(params, n_vocab):
    return RowSampler(params, (), end_tokens=END_TOKENS, n_vocab=n_vocab)


def candidates_of(row, n, rng):
    """The n likeliest tokens; which of equals at the end, and in what order all, is anybody's guess."""
    shuffled = rng.permutation(len(row))
    chosen = rng.permutation(shuffled[np.argsort(-row[shuffled], kind="stable")[:n]])
    return row[chosen], chosen.astype(np.int32)


def is_told(row, ids, one):
    """Whether the candidates hold every token that equals the last one kept: `sample_candidates` says why."""
    patched = row.copy()
    one.patch(patched)
    n_kept = 1 if one.route is SamplingPath.GREEDY else one.params.top_k
    least = np.sort(patched)[-n_kept] if n_kept <= len(row) else -np.inf
    return bool(np.isin(np.flatnonzero((patched >= least) & (patched > -np.inf)), ids).all())


@given(st.data())
def test_candidates_give_the_token_of_the_row(data):
    n_vocab = data.draw(st.sampled_from([12, 16, 40, 129, 1000, 4096]))
    n = min(data.draw(st.sampled_from([16, 64, 128])), n_vocab)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    asked = [data.draw(requests(n_vocab)) for _ in range(data.draw(st.integers(1, 6)))]
    asked = [params for params in asked if made(params, n_vocab).suffices(n)]
    event(f"{len(asked)} rows")
    on_host, on_device = ([made(params, n_vocab) for params in asked] for _ in range(2))
    for _ in range(N_TICKS):
        logits = [data.draw(rows(n_vocab)) for _ in asked]
        if asked and data.draw(st.integers(0, 9)) == 0:
            logits[0][:] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        found = [candidates_of(row, n, rng) for row in logits]
        told = [is_told(row, ids, one) for row, (_, ids), one in zip(logits, found, on_host, strict=True)]
        if not all(told):
            event("a tie that candidates cannot tell")
            return
        whole = sample_rows(np.array(logits, np.float32).reshape(len(asked), n_vocab), on_host)
        values, ids = (np.array([one[i] for one in found]).reshape(len(asked), n) for i in range(2))
        picked = sample_candidates(values.astype(np.float32), ids.astype(np.int32), on_device)
        assert picked.tokens == whole.tokens
        assert {i: str(e) for i, e in picked.failed.items()} == {i: str(e) for i, e in whole.failed.items()}
        assert [state(one) for one in on_device] == [state(one) for one in on_host]


def state(one):
    return one.n_sampled, one._random.getstate() if one._random else None


@given(st.data())
def test_candidates_suffice_only_if_no_other_token_matters(data):
    """Whatever the tokens left out are worth, as long as they are worth less, the answer is the same."""
    n_vocab, n = 300, data.draw(st.sampled_from([16, 64]))
    params = data.draw(requests(n_vocab))
    row = np.random.default_rng(data.draw(st.integers(0, 2**32))).normal(0, 3, n_vocab).astype(np.float32)
    others = np.argsort(-row)[n:]
    drawn = set()
    for height in (0.0, 1.0, 30.0):
        changed = row.copy()
        changed[others] -= np.float32(height)
        one = made(params, n_vocab)
        if not one.suffices(n):
            return
        drawn.add(sample_rows(changed[None], [one]).tokens[0])
    assert len(drawn) == 1
