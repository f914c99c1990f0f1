"""From options and shapes to jobs: lengths, distinct beginnings, conversations, traces, intruders."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.errors import ConfigError
from cobali_workloads.load.jobs import JobMaker, cases_of
from cobali_workloads.load.options import DEFAULT, LoadOptions, shortened
from cobali_workloads.load.prompts import WORDS, PromptMaker, measure_costs, uniform_costs
from cobali_workloads.load.shape import (
    Conversations,
    Fixed,
    Intruder,
    Prefix,
    PromptsFile,
    Repeat,
    Slo,
    TraceFile,
    Uniform,
)
from cobali_workloads.load.target import parse_target
from cobali_workloads.load.trace import read_trace
from cobali_workloads.load.workload import Arrival

WORKLOADS = Path(__file__).parents[2] / "workloads"


def count(text):
    """A tokenizer of our own: one token for three letters, and one more for a word at the very beginning."""
    return 1 + sum(-(-len(word) // 3) for word in text.split(" "))


MAKER = PromptMaker(measure_costs(count), seed=5)


@given(st.integers(8, 600), st.integers(0, 9))
def test_a_prompt_has_the_wanted_length(n_tokens, key):
    assert count(MAKER.text(f"{key}", n_tokens)) == n_tokens


@given(st.integers(8, 200), st.integers(8, 200))
def test_prompts_share_the_prefix_and_nothing_more(prefix, rest):
    one, two = (
        MAKER.text(key, prefix + rest, prefix="p", prefix_tokens=prefix).split() for key in ("a", "b")
    )
    alone = MAKER.text("c", prefix + 8, prefix="p", prefix_tokens=prefix).split()
    shared = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )
    assert one[: shared - 1] == two[: shared - 1]
    assert count(" ".join(one)) == prefix + rest
    assert alone[: shared - 2] == one[: shared - 2]


def test_a_thousand_prompts_have_different_beginnings():
    texts = {" ".join(MAKER.text(f"0.16 {i}", 64).split()[:6]) for i in range(1000)}
    assert len(texts) == 1000


def test_without_a_tokenizer_the_average_decides():
    text = PromptMaker(uniform_costs(1.25), seed=1).text("k", 100)
    assert len(text.split()) == 80
    assert len(set(WORDS)) == len(WORDS)


def shape(**values):
    return replace(DEFAULT, prompt=Fixed(tokens=32), concurrency=(2, 4), requests_per_client=3, **values)


def test_closed_jobs():
    load = JobMaker(shape(), MAKER)
    cases = cases_of(shape())
    assert [(c.label, c.clients) for c in cases] == [("2", 2), ("4", 4)]
    clients = load.closed(cases[1], "0.4")
    assert [len(jobs) for jobs in clients] == [3] * 4
    prompts = [job.prompt for jobs in clients for job in jobs]
    assert len(set(prompts)) == 12
    assert {count(p) for p in prompts} == {32}
    assert load.closed(cases[1], "0.4") == clients
    again = [job.prompt for jobs in load.closed(cases[1], "1.4") for job in jobs]
    assert not set(prompts) & set(again), "a new round has new prompts"
    assert len(load.warmup("0.4")) == DEFAULT.warmup_requests


def test_conversations_begin_where_the_last_one_ended():
    jobs = JobMaker(shape(turns=Conversations(n_turns=2)), MAKER).closed(cases_of(shape())[0], "k")
    assert [job.begins for job in jobs[0]] == [True, False, True]


def test_a_case_with_an_intruder_runs_without_it_first():
    it = shape(intruder=Intruder(every_s=2.0, prompt_tokens=99, output_tokens=3))
    assert [(c.label, c.intruded) for c in cases_of(it)] == [
        ("2", False), ("2+intruder", True), ("4", False), ("4+intruder", True),
    ]  # fmt: skip
    jobs = list(islice(JobMaker(it, MAKER).intruders("k"), 3))
    assert [(j.at_s, j.role, count(j.prompt), j.n_output) for j in jobs] == [
        (2.0, "intruder", 99, 3), (4.0, "intruder", 99, 3), (6.0, "intruder", 99, 3),
    ]  # fmt: skip
    assert len({j.prompt for j in jobs}) == 3
    assert list(JobMaker(shape(), MAKER).intruders("k")) == []


def test_open_jobs_follow_the_arrivals_or_the_trace():
    opened = replace(shape(), kind="open", rate_rps=5.0, n_requests=20)
    jobs = JobMaker(opened, MAKER).opened("k")
    assert len(jobs) == 20
    assert jobs == sorted(jobs, key=lambda j: j.at_s)
    trace = [Arrival(0.0, 16, 3), Arrival(1.5, 24, 9)]
    replayed = JobMaker(
        replace(opened, prompt=TraceFile(path="x"), output=TraceFile(path="x")), MAKER, trace=trace
    )
    assert [(j.at_s, count(j.prompt), j.n_output) for j in replayed.opened("k")] == [
        (0.0, 16, 3),
        (1.5, 24, 9),
    ]
    assert [c.label for c in cases_of(replace(opened, rate_rps=0.0))] == ["trace"]


def test_given_texts():
    file = JobMaker(replace(shape(), prompt=PromptsFile(path="x")), MAKER, texts=("one", "two"))
    prompts = [j.prompt for jobs in file.closed(cases_of(shape())[0], "k") for j in jobs]
    assert len(set(prompts)) == 6, "a prompt that comes again has another beginning"
    assert [p.split("] ")[1] for p in prompts].count("two") == 3
    same = JobMaker(replace(shape(), prompt=Repeat(text="Hi ", n_times=2)), MAKER)
    assert {j.prompt for jobs in same.closed(cases_of(shape())[0], "k") for j in jobs} == {"Hi Hi "}


def test_shared_prefix_of_a_shape():
    it = shape(prefix=Prefix(tokens=40, n_groups=2))
    prompts = [j.prompt for jobs in JobMaker(it, MAKER).closed(cases_of(it)[1], "k") for j in jobs]
    assert {count(p) for p in prompts} == {72}
    assert len({" ".join(p.split()[:8]) for p in prompts}) == 2


@pytest.mark.parametrize(("fresh", "n_seen"), [(False, 1), (True, 2)])
def test_fresh_prefixes_are_new_in_each_round(fresh, n_seen):
    it = shape(prefix=Prefix(tokens=40, n_groups=1, fresh=fresh))
    load, case = JobMaker(it, MAKER), cases_of(shape())[1]
    prompts = [j.prompt for run in ("0.4", "1.4") for jobs in load.closed(case, run) for j in jobs]
    assert len({" ".join(p.split()[:8]) for p in prompts}) == n_seen


# -- traces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    pytest.param("timestamp,input_length,output_length\n7,30,4\n5,10,2\n", id="csv"),
    pytest.param('{"timestamp": 5, "input_length": 10, "output_length": 2}\n\n'
                 '{"timestamp": 7.0, "input_length": 30, "output_length": 4}\n', id="jsonl"),
    pytest.param("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:00:05.0,10,2\r\n"
                 "2023-11-16 18:00:07.0,30,4\r\n", id="dates"),
])  # fmt: skip
def test_traces(text):
    assert read_trace(text) == [Arrival(0.0, 10, 2), Arrival(2.0, 30, 4)]
    assert read_trace(text, speed=4.0)[1].time_s == pytest.approx(0.5)


@pytest.mark.parametrize(("text", "says"), [
    pytest.param("", "no request", id="empty"),
    pytest.param("a,b\n1,2\n", "line 2 has none", id="columns"),
    pytest.param("timestamp,input_length,output_length\nx,1,1\n", "no time", id="time"),
    pytest.param("timestamp,input_length,output_length\nnan,1,1\n", "no time", id="nan"),
    pytest.param("timestamp,input_length,output_length\n1,0,1\n", "no number of tokens", id="no-tokens"),
    pytest.param('{"timestamp": 1,\n', "line 1 is no JSON", id="json"),
])  # fmt: skip
def test_a_bad_trace_says_where(text, says):
    with pytest.raises(ConfigError, match=says):
        read_trace(text)


# -- options --------------------------------------------------------------------------------------


def test_options_make_a_shape():
    made = LoadOptions(
        concurrency="1,8", prompt_tokens="64-128", output_tokens="32", slo="ttft=0.5,tpot=0.05",
        intruder="every=3,prompt=2048", prefix="512x4", turns=3, seed=9, warmup=0,
    ).workload().shape  # fmt: skip
    assert (made.kind, made.concurrency, made.seed, made.warmup_requests) == ("closed", (1, 8), 9, 0)
    assert (made.prompt, made.output) == (Uniform(low=64, high=128), Fixed(tokens=32))
    assert made.slo == Slo(ttft_s=0.5, tpot_s=0.05)
    assert made.intruder == Intruder(every_s=3.0, prompt_tokens=2048, output_tokens=16)
    assert (made.prefix, made.turns) == (Prefix(tokens=512, n_groups=4), Conversations(n_turns=3))


def test_a_rate_means_an_open_loop():
    made = LoadOptions(rate=3.0, burstiness=0.5, n_requests=7).workload().shape
    assert (made.kind, made.rate_rps, made.burstiness, made.n_requests) == ("open", 3.0, 0.5, 7)


def test_options_win_over_the_shape_file():
    made = LoadOptions(shape=WORKLOADS / "chat_steady.yaml", concurrency="3").workload()
    assert made.shape.concurrency == (3,)
    assert made.shape.name == "chat_steady"
    assert len(made.texts) == 186
    assert len(LoadOptions(shape=WORKLOADS / "trace.yaml").workload().trace) == 50


@pytest.mark.parametrize("name", [path.stem for path in sorted(WORKLOADS.glob("*.yaml"))])
def test_every_shape_makes_jobs_and_quick_ones_are_few(name):
    workload = LoadOptions(shape=WORKLOADS / f"{name}.yaml", quick=True).workload()
    load = JobMaker(workload.shape, MAKER, workload.texts, workload.trace)
    for case in cases_of(workload.shape):
        jobs = (
            load.opened("k")
            if workload.shape.kind == "open"
            else [j for c in load.closed(case, "k") for j in c]
        )
        assert 0 < len(jobs) <= 60
        assert all(j.prompt and j.n_output for j in jobs)


@pytest.mark.parametrize(("options", "setting"), [
    pytest.param({"concurrency": "1,x"}, "--concurrency", id="levels"),
    pytest.param({"concurrency": "0"}, "--concurrency", id="level-zero"),
    pytest.param({"prompt_tokens": "9-3"}, "--prompt-tokens", id="length-backwards"),
    pytest.param({"output_tokens": "many"}, "--output-tokens", id="length"),
    pytest.param({"slo": "ttft=0"}, "--slo", id="slo-zero"),
    pytest.param({"slo": "e2e=1"}, "--slo", id="slo-name"),
    pytest.param({"intruder": "every=2"}, "--intruder", id="intruder-without-prompt"),
    pytest.param({"prefix": "1024"}, "--prefix", id="prefix"),
    pytest.param({"loop": "open"}, "--rate", id="open-without-rate"),
    pytest.param({"loop": "half"}, "--loop", id="loop"),
    pytest.param({"rate": 2.0, "turns": 3}, "--turns", id="conversations-by-the-clock"),
    pytest.param({"shape": Path("nowhere.yaml")}, "--shape", id="no-file"),
    pytest.param({"trace": Path("nowhere.csv")}, "trace", id="no-trace"),
])  # fmt: skip
def test_a_wrong_option_is_named(options, setting):
    with pytest.raises(ConfigError) as caught:
        LoadOptions(**options).workload()
    assert caught.value.setting == setting


def test_shortened_keeps_at_least_one_conversation():
    workload = LoadOptions(shape=WORKLOADS / "multi_turn.yaml").workload()
    assert shortened(workload).shape.requests_per_client == 4
    assert shortened(workload).shape.concurrency == (1, 8)
    one = replace(workload, shape=replace(workload.shape, concurrency=(16,)))
    assert shortened(one).shape.concurrency == (16,)


@pytest.mark.parametrize(("text", "expected"), [
    ("a=http://h:1/v1/", ("a", "http://h:1")),
    ("http://h:1", ("h:1", "http://h:1")),
    ("x=https://h/api?a=b", ("x", "https://h/api?a=b")),
])  # fmt: skip
def test_targets(text, expected):
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["a", "=http://h", "a=ftp://h", "a=h:80"])
def test_bad_targets(text):
    with pytest.raises(ConfigError, match="NAME=URL"):
        parse_target(text)
