"""Sampling by hand-computed cases: what each parameter does, what fails, what is remembered."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cobali_ray.backend.candidates import top_candidates
from cobali_ray.backend.sampling import RowSampler, sample_rows
from cobali_ray.core.request.request import GREEDY, SamplingParams
from cobali_ray.errors import InvalidParameterError, InvariantError
from tests.distribution import distribution

LN = math.log
ROW = [LN(0.1), LN(0.4), LN(0.2), LN(0.3)]
INF, NAN = math.inf, math.nan


def sampler(params=GREEDY, prompt=(0,), *, end=(), n_vocab=4, entropy=lambda: 5):
    return RowSampler(params, prompt, end_tokens=frozenset(end), n_vocab=n_vocab, entropy=entropy)


def matrix(*rows):
    return np.array(rows, np.float32)


def draw(row, made):
    return sample_rows(matrix(row), [made]).tokens[0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}, id="neutral-keeps-all"),
        pytest.param({"top_k": 2}, {1: 4 / 7, 3: 3 / 7}, id="top-k-keeps-k"),
        pytest.param({"top_k": 9}, {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}, id="top-k-above-vocabulary-keeps-all"),
        pytest.param({"top_p": 0.69}, {1: 4 / 7, 3: 3 / 7}, id="top-p-stops-once-reached"),
        pytest.param({"top_p": 0.71}, {1: 4 / 9, 3: 3 / 9, 2: 2 / 9}, id="top-p-takes-one-more"),
        pytest.param({"top_p": 1e-9}, {1: 1.0}, id="top-p-leaves-one"),
        pytest.param({"top_p": 0}, {1: 1.0}, id="no-top-p-leaves-one"),
        pytest.param({"top_k": 3, "top_p": 0}, {1: 1.0}, id="no-top-p-of-what-top-k-left"),
        pytest.param({"min_p": 0.6}, {1: 4 / 7, 3: 3 / 7}, id="min-p-is-relative-to-the-best"),
        pytest.param({"min_p": 1.0}, {1: 1.0}, id="min-p-1-leaves-the-best"),
        pytest.param({"typical_p": 0.1}, {3: 1.0}, id="typical-takes-the-nearest-to-entropy"),
        pytest.param({"typical_p": 0.45}, {3: 0.6, 2: 0.4}, id="typical-second-nearest"),
        pytest.param({"temperature": 0.5}, {1: 16 / 30, 3: 9 / 30, 2: 4 / 30, 0: 1 / 30},
            id="temperature-squares"),
        pytest.param({"temperature": 1e-40}, {1: 1.0}, id="temperature-near-zero"),
        pytest.param({"temperature": 0.5, "top_p": 0.71}, {1: 16 / 29, 3: 9 / 29, 2: 4 / 29},
            id="truncation-before-temperature"),
        pytest.param({"top_k": 3, "top_p": 0.5}, {1: 4 / 7, 3: 3 / 7}, id="top-p-of-what-top-k-left"),
        pytest.param({"top_p": 0.71, "min_p": 0.6}, {1: 4 / 7, 3: 3 / 7}, id="min-p-after-top-p"),
        pytest.param({"typical_p": 0.1, "min_p": 0.9, "top_p": 0.9}, {3: 1.0}, id="cuts-after-typical"),
        pytest.param({"typical_p": 0.1, "top_k": 3, "min_p": 0.9}, {3: 1.0}, id="typical-may-drop-the-best"),
        pytest.param({"logit_bias": ((0, LN(4.0)),), "top_k": 2}, {0: 0.5, 1: 0.5}, id="bias-before-top-k"),
        pytest.param({"logit_bias": ((0, LN(2.0)), (0, LN(2.0))), "top_k": 2}, {0: 0.5, 1: 0.5},
            id="biases-add-up"),
        # Logits -2.30, -0.92, -1.61, -1.20 with a standard deviation of 0.52; the best is -0.92.
        pytest.param({"top_n_sigma": 1.0}, {1: 4 / 7, 3: 3 / 7}, id="within-one-deviation-of-the-best"),
        pytest.param({"top_n_sigma": 1.5}, {1: 4 / 9, 3: 3 / 9, 2: 2 / 9}, id="within-one-and-a-half"),
        pytest.param({"top_n_sigma": 1.0, "temperature": 2.0}, {1: 0.5359, 3: 0.4641},
            id="deviations-are-cold"),
        pytest.param({"allowed_token_ids": (2, 0, 2)}, {2: 2 / 3, 0: 1 / 3}, id="only-what-is-allowed"),
        pytest.param({"allowed_token_ids": (2, 0), "temperature": 0.0}, {2: 1.0}, id="greedy-allowed"),
        pytest.param({"bad_words": ((1,), (3, 0))}, {3: 3 / 6, 2: 2 / 6, 0: 1 / 6},
            id="a-bad-word-is-banned"),
        pytest.param({"temperature": 0.0}, {1: 1.0}, id="greedy"),
        pytest.param({"temperature": 0.0, "logit_bias": ((2, 5.0),)}, {2: 1.0}, id="greedy-with-bias"),
    ],
)  # fmt: skip
def test_distribution(asked, expected):
    ids, p = distribution(matrix(ROW)[0], sampler(SamplingParams(**asked)))
    assert dict(zip(ids, p, strict=True)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        pytest.param([0.0, NAN, 1.0, 0.0], "NaN", id="nan"),
        pytest.param([0.0, 1.0, 0.0, INF], "NaN or +inf", id="plus-inf"),
        pytest.param([-INF] * 4, "every logit", id="all-masked"),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"temperature": 0}, id="greedy"),
        pytest.param({"temperature": 0, "logit_bias": ((0, 1.0),)}, id="greedy-bias"),
        pytest.param({"temperature": 0, "n_logprobs": 2}, id="greedy-logprobs"),
        pytest.param({}, id="whole"),
        pytest.param({"top_k": 2}, id="top-k"),
        pytest.param({"top_p": 0.5}, id="top-p"),
        pytest.param({"min_p": 0.5, "n_logprobs": 0}, id="min-p-logprobs"),
        pytest.param({"typical_p": 0.5}, id="typical"),
    ],
)
def test_a_broken_row_fails_alone(row, word, asked):
    made = [sampler(SamplingParams(seed=3, **asked)) for _ in range(3)]
    sampled = sample_rows(matrix(ROW, row, ROW), made)
    assert sampled.tokens[1] == -1
    assert list(sampled.failed) == [1]
    assert word in str(sampled.failed[1])
    assert 1 not in sampled.logprobs
    assert sampled.tokens[0] == sampled.tokens[2] >= 0
    assert [one.n_sampled for one in made] == [1, 0, 1]
    if made[1]._random:
        fresh = sampler(SamplingParams(seed=3, **asked))
        assert made[1]._random.getstate() == fresh._random.getstate(), "a failed row draws nothing"


TINY = (5e-324, 1e-40)
EXTREMES = {
    "temperature": (0, *TINY, 100),
    "top_k": (0, 1, 3000),
    "top_p": (*TINY, 1),
    "min_p": (*TINY, 1),
    "typical_p": (*TINY, 1),
    "repetition_penalty": (*TINY, 0.01, 100),
    "frequency_penalty": (-2, 1e-40, 2),
    "presence_penalty": (-2, 1e-40, 2),
    "logit_bias": (((0, 100.0), (1, -100.0)), ((0, 1e-40),)),
}


@pytest.mark.parametrize(
    "asked",
    [pytest.param({name: value}, id=f"{name}-{value}") for name in EXTREMES for value in EXTREMES[name]],
)
@pytest.mark.parametrize("also", [{}, {"temperature": 1e-40}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_value_that_is_accepted_breaks_no_row(asked, also):
    try:
        params = SamplingParams(**{"seed": 3} | also | asked)
    except InvalidParameterError:
        return
    one = sampler(params, prompt=(0, 1, 2))
    for _ in range(3):
        sampled = sample_rows(matrix([1e4, -1e4, 3.0, 1e-40]), [one])
        assert not sampled.failed


def test_logprobs_of_a_row_with_nan_fail_even_where_a_ban_hides_it():
    params = SamplingParams(ignore_eos=True, n_logprobs=1, seed=1)
    sampled = sample_rows(matrix([NAN, 1.0, 2.0, 3.0]), [sampler(params, end={0})])
    assert "NaN" in str(sampled.failed[0])


def misleading_row():
    """Give a row of which every fourth token, all that a quick look sees, says nothing about the rest."""
    row = np.where(np.arange(9001) % 8 < 4, np.float32(1), np.float32(-1))
    row[::4] = -40
    return row


@pytest.mark.parametrize(
    ("asked", "seen", "chosen"),
    [
        pytest.param({"top_p": 0.5}, 5.0, 1.0, id="top-p"),
        pytest.param({"typical_p": 0.5}, 0.75, 1.0, id="typical-p"),
    ],
)
def test_a_misleading_row_is_read_as_a_whole(asked, seen, chosen):
    row = misleading_row()
    row[4000] = seen
    ids, p = distribution(row, sampler(SamplingParams(**asked), n_vocab=9001))
    weights = np.exp(row.astype(float))
    in_order = [4000, *np.flatnonzero(row == chosen).tolist()]
    n = int(np.searchsorted(np.cumsum(weights[in_order]), 0.5 * weights.sum(), side="right")) + 1
    assert sorted(ids) == sorted(in_order[:n])
    assert sum(p) == pytest.approx(1)


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0},
        {"temperature": 0, "top_p": 0.5},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"typical_p": 1e-6},
        {"top_k": 3, "top_p": 1e-6},
        {"top_k": 2000, "top_p": 1e-6},
        {"top_k": 5, "typical_p": 1e-6},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(np.zeros(5000), id="all-equal"),
        pytest.param(np.where(np.arange(5000) % 2, 0.0, -0.0), id="signed-zeros"),
    ],
)
def test_ties_go_to_the_lowest_id(row, asked):
    params = SamplingParams(seed=1, **asked)
    assert distribution(row.astype(np.float32), sampler(params, n_vocab=5000)) == ([0], [1.0])


def frequencies(row, asked, n_ticks=100, n_rows=100):
    made = [sampler(SamplingParams(seed=i, **asked), n_vocab=len(row)) for i in range(n_rows)]
    logits = np.repeat(row[None], n_rows, axis=0)
    drawn = [token for _ in range(n_ticks) for token in sample_rows(logits.copy(), made).tokens]
    return np.bincount(drawn, minlength=len(row)) / (n_ticks * n_rows)


def test_frequencies_of_a_whole_row_that_no_block_divides():
    row = np.full(1003, -20.0, np.float32)
    row[[3, 500, 1002]] = [LN(0.5), LN(0.3), LN(0.2)]
    row[77] = -INF
    found = frequencies(row, {})
    assert found[[3, 500, 1002]] == pytest.approx([0.5, 0.3, 0.2], abs=0.017)
    assert found[77] == 0


def test_only_rows_that_ask_get_logprobs():
    asks = SamplingParams(temperature=0, n_logprobs=1)
    sampled = sample_rows(matrix(ROW, ROW, ROW), [sampler(), sampler(asks), sampler()])
    assert list(sampled.logprobs) == [1]


def sequence_of(seed, n=24, **more):
    made = sampler(SamplingParams(seed=seed), **more)
    return [draw(ROW, made) for _ in range(n)]


def test_every_seed_is_its_own():
    seeds = [0, 1, -1, 2, -2, 2**64 - 1, -(2**63)]
    assert len({tuple(sequence_of(seed)) for seed in seeds}) == len(seeds)
    assert sequence_of(0) == sequence_of(0)
    assert sequence_of(0, entropy=lambda: 1) == sequence_of(0, entropy=lambda: 2), "seed 0 is a seed"


def test_entropy_is_asked_once_without_a_seed_only():
    asked = []

    def entropy():
        asked.append(1)
        return 9

    sampler(SamplingParams(seed=0), entropy=entropy)
    sampler(GREEDY, entropy=entropy)
    assert not asked
    assert sequence_of(None, entropy=entropy) == sequence_of(9)
    assert len(asked) == 1


def test_entropy_of_the_system_differs():
    made = [RowSampler(SamplingParams(), (), end_tokens=frozenset(), n_vocab=4) for _ in range(2)]
    assert made[0].uniform() != made[1].uniform()


def test_one_uniform_number_per_stochastic_token():
    made, twin = sampler(SamplingParams(seed=2, top_k=2)), sampler(SamplingParams(seed=2))
    draw(ROW, made)
    twin.uniform()
    assert made._random.getstate() == twin._random.getstate()


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("asked", [{}, {"top_k": 3}, {"min_p": 0.01}], ids=str)
def test_extreme_uniform_numbers_draw_possible_tokens(uniform, asked, monkeypatch):
    made = sampler(SamplingParams(seed=1, **asked), n_vocab=5)
    monkeypatch.setattr(made, "uniform", lambda: uniform)
    assert draw([-INF, 0.3, 0.1, 0.2, -INF], made) in {1, 2, 3}


@pytest.mark.parametrize("token", [-1, 4])
def test_bias_outside_the_vocabulary_is_refused(token):
    with pytest.raises(InvalidParameterError) as caught:
        sampler(SamplingParams(logit_bias=((token, 1.0),)))
    assert caught.value.param == "logit_bias"


def test_a_prompt_outside_the_vocabulary_is_refused_where_it_matters():
    sampler(GREEDY, (9,))
    with pytest.raises(InvalidParameterError, match="prompt"):
        sampler(SamplingParams(repetition_penalty=2.0), (9,))


def test_broken_promises_are_errors():
    with pytest.raises(InvariantError, match="shape"):
        sample_rows(matrix(ROW), [])
    with pytest.raises(InvariantError, match="float64"):
        sample_rows(np.zeros((1, 4)), [sampler()])
    with pytest.raises(InvariantError, match="end tokens"):
        sampler(end={4})
    with pytest.raises(InvariantError, match="vocabulary"):
        sampler(n_vocab=0)
    with pytest.raises(InvariantError, match="greedy"):
        sampler().uniform()


def test_no_rows_is_no_work():
    assert sample_rows(np.zeros((0, 4), np.float32), []).tokens == []


def test_tokens_are_plain_ints():
    asked = [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.9}, {"top_p": 0.9, "n_logprobs": 1}]
    sampled = sample_rows(matrix(*[ROW] * 5), [sampler(SamplingParams(seed=1, **one)) for one in asked])
    assert {type(token) for token in sampled.tokens} == {int}
    assert type(sampled.logprobs[4].logprob) is float
    assert type(sampled.logprobs[4].top[0][0]) is int


def test_300_rows_of_top_candidates():
    logits = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    _, ids, sound = top_candidates(logits, list(range(300)), 16)
    assert sound.all()
    assert (ids == np.argsort(-logits, axis=1, kind="stable")[:, :16]).all()
