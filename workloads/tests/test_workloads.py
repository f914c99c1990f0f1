"""The committed prompt files and load shapes, and the code that reads them."""

import importlib.util
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, pstdev

import pytest

from cobali_ray.errors import ConfigError
from cobali_workloads.load.prompts import read_prompts
from cobali_workloads.load.shape_file import load_shape
from cobali_workloads.load.workload import arrivals, sizes

WORKLOADS = Path(__file__).parents[2] / "workloads"
FILES = [
    ("prompts_16.txt", 16, (25, 90)),
    ("prompts_186.txt", 186, (24, 90)),
    ("prompts_long_32.txt", 32, (450, 1500)),
]

OPEN = """
name: a
description: b
seed: 1
kind: open
rate_rps: 5
burstiness: 1.0
n_requests: 10
warmup_requests: 0
prompt_tokens: {dist: fixed, tokens: 9}
output_tokens: {dist: uniform, low: 2, high: 8}
ignore_eos: true
slo: {ttft_s: 1.5}
"""
CLOSED = """
name: a
description: b
seed: 1
kind: closed
concurrency: [1, 2]
requests_per_client: 3
warmup_requests: 0
prompts_file: prompts_16.txt
output_tokens: {dist: fixed, tokens: 8}
ignore_eos: false
slo: {itl_s: 1}
"""


def prompts_of(name):
    return read_prompts((WORKLOADS / name).read_text(encoding="utf-8"))


def shape_of(name):
    return load_shape((WORKLOADS / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("make_prompts", WORKLOADS / "make_prompts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "n_prompts", "words"), FILES)
def test_prompt_file_has_the_promised_prompts(name, n_prompts, words):
    prompts = prompts_of(name)
    assert len(prompts) == n_prompts
    assert [p for p in prompts if not words[0] <= len(p.split()) <= words[1]] == []
    assert [p for p in prompts if re.search(r"<[a-z]+>|\n\s*\n", p)] == [], "an empty slot or a blank line"


def test_generator_reproduces_the_files(generator):
    made = generator.build(WORKLOADS / "text")
    assert set(made) == {path.name for path in WORKLOADS.glob("prompts_*.txt")}
    for name, content in made.items():
        assert content.encode() == (WORKLOADS / name).read_bytes(), name


@pytest.mark.parametrize(("text", "expected"), [
    pytest.param("a\n\nb\n", ["a", "b"], id="two"),
    pytest.param("a\nb\n\n\n \nc", ["a\nb", "c"], id="lines-stay-together"),
    pytest.param("\n\na\r\n\r\nb\n\n", ["a", "b"], id="edges-and-crlf"),
])  # fmt: skip
def test_read_prompts(text, expected):
    assert read_prompts(text) == expected


def test_a_file_without_prompts_is_an_error():
    with pytest.raises(ConfigError, match="prompts: there is none in the file"):
        read_prompts(" \n\n")


@pytest.mark.parametrize(("base", "old", "new", "setting"), [
    pytest.param(OPEN, "seed: 1", "seed: 1\nsped: 2", "sped", id="unknown-key"),
    pytest.param(OPEN, "seed: 1", "seed: 1\nseed: 2", "seed", id="key-given-twice"),
    pytest.param(OPEN, "seed: 1", "", "seed", id="missing"),
    pytest.param(OPEN, "seed: 1", "seed: -1", "seed", id="below-range"),
    pytest.param(OPEN, "kind: open", "kind: half", "kind", id="no-such-kind"),
    pytest.param(OPEN, "kind: open", "kind: [open]", "kind", id="kind-is-a-list"),
    pytest.param(OPEN, "name: a", "name: 3", "name", id="name-is-a-number"),
    pytest.param(OPEN, "rate_rps: 5", "rate_rps: 0", "rate_rps", id="rate-zero"),
    pytest.param(OPEN, "rate_rps: 5", "rate_rps: .nan", "rate_rps", id="rate-nan"),
    pytest.param(OPEN, "rate_rps: 5", "rate_rps: .inf", "rate_rps", id="rate-infinite"),
    pytest.param(OPEN, "rate_rps: 5", "rate_rps: true", "rate_rps", id="a-flag-is-no-number"),
    pytest.param(OPEN, "n_requests: 10", "n_requests: 1.5", "n_requests", id="half-a-request"),
    pytest.param(OPEN, "n_requests: 10", "n_requests: true", "n_requests", id="a-flag-is-no-count"),
    pytest.param(OPEN, "ignore_eos: true", "ignore_eos: 1", "ignore_eos", id="a-number-is-no-flag"),
    pytest.param(OPEN, "dist: fixed", "dist: zipf", "prompt_tokens.dist", id="no-such-distribution"),
    pytest.param(OPEN, "tokens: 9", "tokens: 9, low: 1", "prompt_tokens.low", id="key-of-another-dist"),
    pytest.param(OPEN, "high: 8", "high: 1", "output_tokens.high", id="high-below-low"),
    pytest.param(OPEN, "{ttft_s: 1.5}", "{}", "slo", id="no-target"),
    pytest.param(OPEN, "{ttft_s: 1.5}", "3", "slo", id="slo-is-a-number"),
    pytest.param(OPEN, "{ttft_s: 1.5}", "{e2e_s: 1}", "slo.e2e_s", id="unknown-target"),
    pytest.param(OPEN, "seed: 1", "seed: 1\nprompts_file: x", "prompt_tokens", id="two-kinds-of-prompt"),
    pytest.param(OPEN, "seed: 1", "seed: 1\nconcurrency: [1]", "concurrency", id="closed-key-in-open-loop"),
    pytest.param(OPEN, "seed: 1", "seed: 1\nprefix: {tokens: 4}", "prefix.n_groups", id="half-a-prefix"),
    pytest.param(CLOSED, "seed: 1", "seed: 1\nrate_rps: 1", "rate_rps", id="open-key-in-closed-loop"),
    pytest.param(OPEN, "seed: 1", "seed: 1\nturns: {n_turns: 4}", "turns", id="turns-in-an-open-loop"),
    pytest.param(OPEN, "seed: 1", "seed: 1\ntrace: {file: x}", "rate_rps", id="a-trace-has-its-own-rate"),
    pytest.param(CLOSED, "seed: 1", "seed: 1\nturns: {n_turns: 1}", "turns.n_turns", id="one-turn"),
    pytest.param(CLOSED, "seed: 1", "seed: 1\ntrace: {file: x}", "trace", id="trace-in-a-closed-loop"),
    pytest.param(CLOSED, "[1, 2]", "[]", "concurrency", id="no-level"),
    pytest.param(CLOSED, "[1, 2]", "[1, 0]", "concurrency", id="level-zero"),
    pytest.param(CLOSED, "[1, 2]", "4", "concurrency", id="level-is-no-list"),
    pytest.param(CLOSED, "seed: 1", "seed: 1\nprefix: {tokens: 4, n_groups: 2}", "prefix", id="text-prefix"),
    pytest.param(CLOSED, CLOSED, "- a\n- b", "workload", id="a-list"),
    pytest.param(CLOSED, CLOSED, "a: [", "workload", id="no-yaml"),
])  # fmt: skip
def test_a_bad_shape_names_the_key(base, old, new, setting):
    load_shape(base)
    assert old in base
    with pytest.raises(ConfigError) as caught:
        load_shape(base.replace(old, new, 1))
    assert caught.value.setting == setting


def test_arrivals_are_seeded():
    shape = shape_of("poisson")
    assert arrivals(shape) == arrivals(shape)
    other = arrivals(replace(shape, seed=shape.seed + 1))
    assert all(a.time_s != b.time_s for a, b in zip(arrivals(shape), other, strict=True))
    assert [a[1:] for a in arrivals(shape)] != [b[1:] for b in other]
    assert all(a.time_s <= b.time_s for a, b in pairwise(arrivals(shape)))


def test_another_rate_keeps_the_lengths():
    shape = shape_of("poisson")
    faster = arrivals(replace(shape, rate_rps=2 * shape.rate_rps))
    assert [a[1:3] for a in faster] == [a[1:3] for a in arrivals(shape)] == sizes(shape, shape.n_requests)
    assert faster[-1].time_s == pytest.approx(arrivals(shape)[-1].time_s / 2)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_rate_is_kept_and_burstiness_spreads_the_gaps(burstiness):
    shape = replace(load_shape(OPEN), burstiness=burstiness, n_requests=20_000)
    times = [0.0, *(a.time_s for a in arrivals(shape))]
    gaps = [after - before for before, after in pairwise(times)]
    assert mean(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_sizes_follow_their_distribution():
    shape = replace(shape_of("poisson"), n_requests=4000)
    lengths = [size.prompt_tokens for size in sizes(shape, 4000)]
    assert median(lengths) == pytest.approx(180, rel=0.1)
    assert (min(lengths), max(lengths)) == (16, 1800)
    assert {size.output_tokens for size in sizes(load_shape(OPEN), 500)} == set(range(2, 9))
    assert {size.prompt_tokens for size in sizes(load_shape(OPEN), 5)} == {9}
