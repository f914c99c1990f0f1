"""The fast sampler against a slow scalar one, and the promise that neighbours change nothing."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cobali_ray.backend.candidates import top_candidates
from cobali_ray.backend.chain import draw as draw_places
from cobali_ray.backend.chain import weigh
from cobali_ray.backend.sampling import RowSampler, sample_rows
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.errors import InvalidParameterError
from tests.distribution import distribution

EDGE = 1e-5
"""Cuts nearer to a threshold than this are nobody's fault: float32 sums against float64 sums."""


def softmax(logits):
    peak = max(logits)
    weights = [math.exp(x - peak) for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


class AmbiguousError(Exception):
    """A decision of the reference hangs on a rounding error."""


def clear_of(value, threshold, scale=1.0):
    if abs(value - threshold) < EDGE * scale:
        raise AmbiguousError
    return value


def reference(row, params):
    """Do the chain one candidate at a time: (logit, id) pairs, likeliest first, and their probabilities."""
    kept = sorted(((float(x), i) for i, x in enumerate(row) if x > -math.inf), key=lambda c: (-c[0], c[1]))
    if params.top_k:
        kept = kept[: params.top_k]
    if params.typical_p < 1:
        p = softmax([x for x, _ in kept])
        entropy = -math.fsum(q * math.log(q) for q in p if q > 0)
        far = [abs(-math.log(q) - entropy) if q > 0 else math.inf for q in p]
        order = sorted(range(len(kept)), key=lambda at: (far[at], kept[at][1]))
        for one, two in itertools.pairwise(order):
            if kept[one][0] != kept[two][0]:
                clear_of(far[one], far[two])
        taken, mass = [], 0.0
        for at in order:
            taken.append(at)
            mass += p[at]
            if clear_of(mass, params.typical_p) > params.typical_p:
                break
        kept = [kept[at] for at in sorted(taken)]
    if params.top_p < 1:
        p, taken, mass = softmax([x for x, _ in kept]), 0, 0.0
        while taken < len(kept):
            mass += p[taken]
            taken += 1
            if clear_of(mass, params.top_p) >= params.top_p:
                break
        kept = kept[:taken]
    if params.min_p > 0:
        bound = kept[0][0] + math.log(params.min_p)
        kept = [(x, i) for x, i in kept if x == kept[0][0] or clear_of(x, bound) >= bound]
    p = softmax([x / params.temperature for x, _ in kept])
    return {i: q for (_, i), q in zip(kept, p, strict=True)}


@st.composite
def rows(draw, n_vocab):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.standard_normal(n_vocab) * draw(st.sampled_from([0.01, 1.0, 3.0, 8.0]))
    kind = draw(st.sampled_from(["smooth", "smooth", "ties", "peak", "holes", "sorted"]))
    if kind == "ties":
        row = np.round(row)
    if kind == "peak":
        row[rng.integers(n_vocab)] += 25
    if kind == "holes":
        row[rng.random(n_vocab) < 0.7] = -np.inf
        row[rng.integers(n_vocab)] = 1.0
    if kind == "sorted":
        row = np.sort(row)
    return row.astype(np.float32)


@st.composite
def chains(draw, **more):
    asked = {
        "temperature": draw(st.sampled_from([0.3, 0.8, 1.0, 2.0])),
        "top_k": draw(st.sampled_from([0, 0, 0, 1, 2, 16, 17, 40, 300, 1024, 1025, 2000])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.0, 0.05, 0.5, 0.9, 0.999, 0.9999999])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.05, 0.5, 1.0])),
        "typical_p": draw(st.sampled_from([1.0, 1.0, 1.0, 0.2, 0.7, 0.95])),
        "seed": draw(st.integers(-5, 5)),
    }
    return SamplingParams(**(asked | more))


VOCABULARIES = st.sampled_from([1, 2, 15, 16, 129, 1000, 4096, 9001])


@given(st.data())
def test_the_fast_chain_is_the_slow_chain(data):
    n_vocab = data.draw(VOCABULARIES)
    row, params = data.draw(rows(n_vocab)), data.draw(chains())
    try:
        expected = reference(row.tolist(), params)
    except AmbiguousError:
        assume(False)
    ids, p = distribution(row, RowSampler(params, (), end_tokens=frozenset(), n_vocab=n_vocab))
    found = dict(zip(ids, p, strict=True))
    visible = {i for i, q in expected.items() if q > 1e-30}
    assert visible <= set(found) <= set(expected)
    for i in visible:
        assert found[i] == pytest.approx(expected[i], rel=2e-5, abs=1e-12)


@given(st.data())
def test_the_draw_is_from_the_distribution(data):
    n_vocab = data.draw(st.sampled_from([2, 15, 129, 1000]))
    row, params = data.draw(rows(n_vocab)), data.draw(chains())
    made = RowSampler(params, (), end_tokens=frozenset(), n_vocab=n_vocab)
    ids, p = distribution(row, made)
    n = 64
    logits = np.repeat(row[None], n, axis=0)
    seeds = [SamplingParams(**{**as_dict(params), "seed": seed}) for seed in range(n)]
    drawn = sample_rows(
        logits, [RowSampler(s, (), end_tokens=frozenset(), n_vocab=n_vocab) for s in seeds]
    ).tokens
    assert set(drawn) <= set(ids)
    if p[0] < 0.5:
        assert len(set(drawn)) > 1, "64 seeds are not one seed"
    if p[0] > 0.6:
        assert drawn.count(ids[0]) > n // 4, "five standard deviations"


def as_dict(params):
    return {name: getattr(params, name) for name in type(params).__dataclass_fields__}


@st.composite
def requests(draw, n_vocab):
    """Any kind of request: greedy ones, penalties, bias, bans and logprobs as well."""
    tokens = st.integers(0, n_vocab - 1)
    more = {
        "n_logprobs": draw(st.sampled_from([None, None, 0, 3, 20])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.3])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.7])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, -0.4])),
        "min_tokens": draw(st.sampled_from([0, 0, 2])),
        "ignore_eos": draw(st.booleans()),
        "logit_bias": tuple(draw(st.lists(st.tuples(tokens, st.floats(-5, 5)), max_size=3))),
        "top_n_sigma": draw(st.sampled_from([0.0, 0.0, 1.0, 3.0])),
    }
    if draw(st.booleans()):
        more["temperature"] = 0.0
    return draw(chains(**more)), tuple(draw(st.lists(tokens, max_size=5)))


N_TICKS = 3


def play(places, n_vocab, order):
    """Sample `N_TICKS` ticks of the requests named in `order`; what each of them saw and ended as."""
    made = {
        at: RowSampler(places[at][0][0], places[at][0][1], end_tokens=frozenset({0}), n_vocab=n_vocab)
        for at in order
    }
    seen = {at: [] for at in order}
    for tick in range(N_TICKS):
        logits = np.stack([places[at][1][tick] for at in order])
        sampled = sample_rows(logits, [made[at] for at in order])
        for i, at in enumerate(order):
            seen[at].append((sampled.tokens[i], sampled.logprobs.get(i), str(sampled.failed.get(i))))
    state = {at: made[at]._random.getstate() if made[at]._random else None for at in order}
    return {at: (seen[at], made[at].n_sampled, state[at]) for at in order}


@given(st.data())
def test_neighbours_change_nothing(data):
    n_vocab = data.draw(st.sampled_from([2, 15, 129, 1003, 4096, 5001]))
    n_rows = data.draw(st.integers(1, 9))
    broken = np.full(n_vocab, np.nan, np.float32)
    places = []
    for _ in range(n_rows):
        ticks = [data.draw(rows(n_vocab)) for _ in range(N_TICKS)]
        if data.draw(st.integers(0, 9)) == 0:
            ticks[1] = broken
        places.append((data.draw(requests(n_vocab)), ticks))
    order = list(range(n_rows))
    random.Random(data.draw(st.integers(0, 99))).shuffle(order)
    together = play(places, n_vocab, order)
    for at in order:
        assert play(places, n_vocab, [at])[at] == together[at]
    some = order[::2]
    beside = play(places, n_vocab, some)
    assert all(beside[at] == together[at] for at in some)


@given(st.data())
def test_not_a_bit_of_a_weight_depends_on_the_matrix(data):
    """Tokens hide differences in the last bit: look at the weights, and draw at the very edges of tokens."""
    n_vocab = data.draw(st.sampled_from([129, 4096, 5001]))
    n_rows, width = data.draw(st.integers(2, 7)), data.draw(st.sampled_from([16, 48, 128]))
    logits = np.stack([data.draw(rows(n_vocab)) for _ in range(n_rows)])
    made = [
        RowSampler(data.draw(chains()), (), end_tokens=frozenset(), n_vocab=n_vocab) for _ in range(n_rows)
    ]
    params, mass = np.array([one.chain for one in made]), np.full(n_rows, np.nan)
    with np.errstate(all="ignore"):
        values, ids, _ = top_candidates(logits, list(range(n_rows)), width)
        weights = weigh(values, params, mass)
        for i in range(n_rows):
            alone, alone_ids, _ = top_candidates(logits, [i], width)
            assert alone.tobytes() == values[i].tobytes()
            assert alone_ids.tobytes() == ids[i].tobytes()
            assert weigh(alone, params[i : i + 1], mass[:1]).tobytes() == weights[i].tobytes()
    cumulated = np.cumsum(weights, axis=1)
    edges = cumulated / cumulated[:, -1:]
    for column in range(0, width, 5):
        for uniforms in (edges[:, column], np.nextafter(edges[:, column], 0)):
            places = draw_places(weights, uniforms)
            lone = [int(draw_places(weights[i : i + 1], uniforms[i : i + 1])[0]) for i in range(n_rows)]
            assert places.tolist() == lone


@given(st.data())
def test_logprobs_are_the_log_softmax(data):
    n_vocab = data.draw(VOCABULARIES)
    row, k = data.draw(rows(n_vocab)), data.draw(st.integers(0, 20))
    params, prompt = data.draw(requests(n_vocab))
    params = SamplingParams(**{**as_dict(params), "n_logprobs": k, "ignore_eos": False, "min_tokens": 0})
    made = RowSampler(params, prompt, end_tokens=frozenset(), n_vocab=n_vocab)
    sampled = sample_rows(row[None].copy(), [made])
    peak = float(row.max())
    total = peak + math.log(math.fsum(math.exp(x - peak) for x in row.tolist()))
    ranked = sorted((-float(x), i) for i, x in enumerate(row) if x > -np.inf)[:k]
    found = sampled.logprobs[0]
    assert found.logprob == pytest.approx(float(row[sampled.tokens[0]]) - total, abs=1e-6)
    assert [i for i, _ in found.top] == [i for _, i in ranked]
    assert [value for _, value in found.top] == pytest.approx([-x - total for x, _ in ranked], abs=1e-6)


@given(st.data())
def test_counting_step_by_step_is_counting_all_at_once(data):
    n_vocab = 40
    row, (params, prompt) = data.draw(rows(n_vocab)), data.draw(requests(n_vocab))
    output = data.draw(st.lists(st.integers(0, n_vocab - 1), max_size=100))
    made = RowSampler(params, prompt, end_tokens=frozenset({0}), n_vocab=n_vocab)
    for token in output:
        made.take(token)
    expected = row.astype(np.float64)
    for token, bias in params.logit_bias:
        expected[token] += bias
    for token in {*output, *prompt}:
        times = params.repetition_penalty
        expected[token] = expected[token] / times if expected[token] > 0 else expected[token] * times
    for token in set(output):
        expected[token] -= output.count(token) * params.frequency_penalty + params.presence_penalty
    if params.ignore_eos or len(output) < params.min_tokens:
        expected[0] = -np.inf
    made.patch(row)
    if params.top_n_sigma:
        kept = [x for x in expected if x > -math.inf]
        mean = math.fsum(kept) / len(kept)
        spread = math.sqrt(math.fsum((x - mean) ** 2 for x in kept) / len(kept))
        bound = max(kept) - params.top_n_sigma * spread
        assume(all(abs(x - bound) > EDGE * max(abs(bound), 1) * 10 for x in kept))
        expected[expected < bound] = -np.inf
    assert row.astype(np.float64) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def may_follow(token, output, params, bad_words):
    """Say in plain words whether the bans and the allowed set let a token through."""
    if params.allowed_token_ids and token not in params.allowed_token_ids:
        return False
    if token in params.stop_token_ids and len(output) < params.min_tokens:
        return False
    if token == 0 and token not in params.stop_token_ids and len(output) < params.min_tokens:
        return False  # the end token
    text = [*output, token]
    return not any(text[-len(word) :] == list(word) for word in bad_words)


@given(st.data())
def test_bans_and_allowed_tokens_are_as_plain_words_say(data):
    n_vocab = 12
    tokens = st.integers(0, n_vocab - 1)
    words = st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=6)
    params = SamplingParams(
        n_logprobs=0,
        seed=1,
        min_tokens=data.draw(st.sampled_from([0, 2])),
        stop_token_ids=tuple(data.draw(st.lists(tokens, max_size=3))),
        bad_words=tuple(data.draw(words)),
        allowed_token_ids=tuple(data.draw(st.lists(tokens, max_size=6))),
    )
    first = [token for token in range(n_vocab) if may_follow(token, [], params, params.bad_words)]
    if not first:
        assume(params.allowed_token_ids)
        with pytest.raises(InvalidParameterError):
            RowSampler(params, (), end_tokens=frozenset({0}), n_vocab=n_vocab)
        return
    made = RowSampler(params, (), end_tokens=frozenset({0}), n_vocab=n_vocab)
    output = []
    for _ in range(6):
        row = data.draw(rows(n_vocab))
        row[row == -np.inf] = -1.0
        before, patched = row.copy(), row.copy()
        changes = made.patch(patched)
        words = params.bad_words
        left = [token for token in range(n_vocab) if may_follow(token, output, params, words)]
        if not left:  # then only words of one token are kept out
            words = [word for word in words if len(word) == 1]
            left = [token for token in range(n_vocab) if may_follow(token, output, params, words)]
        assert np.flatnonzero(patched > -np.inf).tolist() == left
        assert patched[left].tolist() == before[left].tolist()
        for ids, values in reversed(changes):
            patched[ids] = values
        assert patched.tobytes() == before.tobytes(), "undone for the logprobs"
        output += sample_rows(row[None], [made]).tokens
        assert output[-1] in left
