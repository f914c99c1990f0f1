"""The simulator beside the engine: both on virtual clocks, the engine on a backend whose passes take time."""

import json
import random
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.cli import app
from cobali_ray.core.cost.ticktime import TickShape, TickTimeModel
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import FakeClock
from cobali_workloads import inside
from cobali_workloads.commands import route
from cobali_workloads.commands.foresight import typical
from cobali_workloads.inside.asks import asks_of, chain_of, chatting, linked, replayed
from cobali_workloads.inside.foresight import CLIENTS, LOADS, Bench, foresee
from cobali_workloads.inside.policies import POLICIES
from cobali_workloads.inside.record import RunRecord
from cobali_workloads.inside.simulated import most_rps, one_cache, play, with_limits
from cobali_workloads.load.jobs import LoadCase
from cobali_workloads.load.options import LoadOptions
from cobali_workloads.load.trace import read_trace
from cobali_workloads.simulate.fleet import RouterPolicy, SimulatedRequest
from cobali_workloads.simulate.ticks import (
    Dice,
    Tick,
    TickProfile,
    fit,
    plain_table,
    read_times,
    ticks_of,
    write_times,
)

LIMITS = EngineLimits(
    n_slots=8, n_ctx_slot=4096, n_cells=32768, token_budget=264, prefill_chunk=256, prefill_order="shortest",
    n_host_cells=65536, cell_bytes=1024, copies=True, shares=True,
)  # fmt: skip
TIMES = TickProfile(limits=LIMITS, table=plain_table(pass_s=0.004, row_s=0.0015, token_s=0.0002))


class Passes(ScriptedBackend):
    """A pass takes 5 ms, 0.5 ms a sequence and 0.1 ms a token, give or take a tenth."""

    def __init__(self, clock, **options):
        super().__init__(sleep=clock.advance, now=clock.now, n_slots=8, n_ctx_slot=1024, **options)
        self._rng = random.Random(1)

    def forward(self, batch):
        seconds = 0.005 + 0.0005 * len(list(batch.spans)) + 0.0001 * batch.n_tokens
        self._tick_s = seconds * self._rng.lognormvariate(0.0, 0.1)
        super().forward(batch)


def test_what_is_simulated_is_what_an_engine_takes():
    clock = FakeClock()
    settings = EngineSettings(model="builtin:scripted", n_slots=8, n_ctx=1024, host_cache_mib=0)
    bench = Bench(Passes(clock), settings, clock, clock.advance)
    found = foresee(bench, n_requests=44, n_rounds=1, seed=0)
    assert set(found.compared) == {*LOADS, CLIENTS}
    errors = found.errors(found.simulated)
    assert typical(errors) < 0.05
    assert max(abs(error) for one in errors.values() for error in one.values()) < 0.3


def ticks_for(weights, n=200, noise=0.0):
    rng = random.Random(2)
    for i in range(n):
        n_decode, length = rng.randrange(1, 9), rng.randrange(16, 256)
        shape = TickShape(n_decode, 100 * n_decode, ((0, length),) if i % 2 else ())
        seconds = weights[0] + weights[1] * n_decode + (weights[2] * length if i % 2 else 0.0)
        yield Tick(shape, seconds * rng.lognormvariate(0.0, noise), 0.001 if i else None)


def test_ticks_are_fitted_all_alike_and_scatter_as_they_did():
    times = fit(ticks_for((0.01, 0.001, 0.0002), n=2000, noise=0.2), LIMITS)
    model = times.model()
    assert isinstance(model, TickTimeModel)
    assert model.predict(TickShape(4, 400, ())) == pytest.approx(0.014, rel=0.1)
    assert model.predict(TickShape(4, 400, ((0, 200),))) == pytest.approx(0.054, rel=0.1)
    assert times.between_s == 0.001
    dice = Dice(times, seed=0)
    drawn = sorted(dice.roll(TickShape(4, 400, ())) for _ in range(4000))
    assert drawn[2000] == pytest.approx(0.014, rel=0.05)
    assert drawn[-40] / drawn[2000] == pytest.approx(1.59, rel=0.1), "the 99th percentile of that scatter"


def test_too_few_ticks_are_refused():
    with pytest.raises(ConfigError, match="are too few"):
        fit(ticks_for((0.01, 0.001, 0.0002), n=20), LIMITS)


def feed(ticks):
    records, at_s = [], 0.0
    for i, tick in enumerate(ticks):
        spans = [[slot, 100, 1, 1] for slot in range(tick.shape.n_decode)]
        spans += [[99, start, length, 0] for start, length in tick.shape.chunks]
        records.append({
            "tick_id": i, "started_s": at_s, "total_s": tick.seconds, "spans": spans, "n_restored": 0,
            "n_saved": 0, "n_drafted": 0, "n_prefilling": 0, "n_generating": 1, "n_queued": 0,
        })  # fmt: skip
        at_s += tick.seconds + 0.001
    limits = {**{name: getattr(LIMITS, name) for name in LIMITS.__dataclass_fields__}, "grain": {"step": 4}}
    return {"engine": {"limits": limits}, "ticks": records}


def test_a_recorded_run_is_fitted_when_it_is_read(tmp_path):
    seen = list(ticks_for((0.01, 0.001, 0.0002)))
    recorded = feed(seen)
    (tmp_path / "run.json").write_text(json.dumps(recorded))
    times = read_times(tmp_path / "run.json")
    assert times.limits.grain.step == 4
    assert [tick.shape for tick in ticks_of(recorded, LIMITS)] == [tick.shape for tick in seen]
    assert times.between_s == pytest.approx(0.001)
    write_times(times, tmp_path / "times.json")
    assert read_times(tmp_path / "times.json").model().predict(TickShape(4, 400, ())) == pytest.approx(
        0.014, rel=0.02
    )


def test_ticks_that_moved_cells_are_not_fitted_and_pauses_are_no_host_work():
    recorded = feed(list(ticks_for((0.01, 0.001, 0.0002), n=4)))
    recorded["ticks"][1]["n_saved"] = 64
    recorded["ticks"][2]["n_generating"] = 0
    seen = ticks_of(recorded, LIMITS)
    assert len(seen) == 3
    assert [tick.since_s is None for tick in seen] == [True, False, True]


@pytest.mark.parametrize("text", ["[]", "{}", '{"ticks": []}', "no", '{"limits": {"n_slots": 1}}'])
def test_what_is_no_file_of_times_is_said_to_be_none(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match="--model-time"):
        read_times(tmp_path / "run.json")


def test_every_request_of_a_fleet_ends_once_with_its_own_answer():
    asks = [SimulatedRequest(f"{i}", 0.02 * i, bytes([i]) * (50 + i), bytes(5 + i % 7)) for i in range(60)]
    policy = RouterPolicy()
    stories = play(TIMES, 3, lambda: policy, asks).stories
    assert not policy.router._bookings, "each was released"
    assert sorted(s.ask.request_id for s in stories) == sorted(a.request_id for a in asks)
    for story in stories:
        assert story.end.finish_reason == "length"
        assert len(story.tokens_s) == len(story.ask.answer)
        assert story.sent_s < story.tokens_s[0] <= story.ended_s == story.tokens_s[-1]
    assert {s.engine_id for s in stories} == {"0", "1", "2"}


def test_time_passes_as_the_ticks_say():
    (story,) = play(TIMES, 1, POLICIES["router"], [SimulatedRequest("a", 1.0, bytes(100), bytes(3))]).stories
    first_s = 0.004 + 0.0002 * 100 + 0.0013
    assert [t - 1.0 for t in story.tokens_s] == pytest.approx([first_s, first_s + 0.0055, first_s + 0.011])


def test_a_turn_comes_after_the_answer_and_finds_what_was_said():
    first = SimulatedRequest("1", 0.0, bytes(range(200)), bytes(range(50)))
    then = SimulatedRequest("2", 5.0, bytes([*first.prompt, *first.answer, *range(30)]), bytes(4))
    one, two = play(TIMES, 2, POLICIES["router"], [linked([first, then])]).stories
    assert two.sent_s == one.ended_s + 5.0
    assert two.engine_id == one.engine_id
    assert two.end.stats.n_cached == 249


def test_who_is_refused_everywhere_is_told_so_and_goes_on():
    small = with_limits(TIMES, {"n_slots": 1, "max_queue": 0})
    asks = [SimulatedRequest(f"{i}", 0.0, bytes(50), bytes(9)) for i in range(3)]
    asks[2].then = SimulatedRequest("after", 1.0, bytes(50), bytes(2))
    stories = play(small, 2, POLICIES["router"], asks).stories
    assert [s.end is None for s in stories] == [False, False, True, False]


def test_what_does_not_fit_a_slot_is_refused_and_an_answer_ends_where_it_is_full():
    asks = [
        SimulatedRequest("long", 0.0, bytes(5000), bytes(9)),
        SimulatedRequest("full", 0.0, bytes(4090), bytes(200)),
    ]
    too_long, full = play(TIMES, 2, POLICIES["router"], asks).stories
    assert too_long.end is None
    assert len(full.tokens_s) == 6


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_uses_all_engines_and_gives_up_when_all_refused(name):
    policy = POLICIES[name]()
    assert play(TIMES, 3, lambda: policy, chatting(6, 1, 0.5)).hit_rate > 0.1
    asks = [
        SimulatedRequest(f"x{i}", 0.0, bytes(random.Random(i).randbytes(300)), bytes(3)) for i in range(40)
    ]
    assert len({s.engine_id for s in play(TIMES, 3, POLICIES[name], asks).stories}) == 3
    request = play(TIMES, 1, POLICIES[name], asks[:1]).stories[0].request
    assert policy.choose(request, 0.0, {"0", "1"}) == "2"
    assert policy.choose(request, 0.0, {"0", "1", "2"}) is None


@pytest.mark.parametrize(
    ("share", "sample_s", "seconds"),
    [
        pytest.param(0.5, 60, 120, marks=pytest.mark.thorough),
        pytest.param(0.9, 60, 120, marks=pytest.mark.thorough),
        (0.9, 15, 30),
    ],
)
def test_the_router_is_best_in_short(share, sample_s, seconds):
    limits = {"n_slots": 16, "n_cells": 65536}
    times = with_limits(
        TickProfile(limits=LIMITS, table=plain_table(pass_s=0.004, row_s=0.0015, token_s=0.0005)), limits
    )
    one = chatting(sample_s, 0, 1.0)
    rps = len([a for first in one for a in chain_of(first)]) / sample_s
    asks = chatting(seconds, 0, share * 2 * most_rps(times, one) / rps)
    found = {}
    for name in POLICIES:
        played = play(times, 2, POLICIES[name], asks)
        waits = sorted(s.tokens_s[0] - s.sent_s for s in played.stories)
        found[name] = (sum(waits) / len(waits), waits[int(0.99 * len(waits))], played)
    ours, *others = found.values()
    assert all(ours[0] < 0.85 * other[0] for other in others)
    assert all(ours[1] < 1.1 * other[1] for other in others), "of two hundred requests that is one or two"
    assert ours[2].hit_rate > 0.9 * one_cache([s.ask for s in ours[2].stories], 2, times.limits)


def test_a_trace_with_hashes_shares_what_its_hashes_say():
    text = "\n".join(
        json.dumps({"timestamp": t, "input_length": n, "output_length": 20, "hash_ids": ids})
        for t, n, ids in [(0, 1024, [1, 2]), (3000, 1500, [1, 2, 3]), (6000, 600, [7, 8])]
    )
    arrivals = read_trace(text)
    assert [one.time_s for one in arrivals] == [0.0, 3.0, 6.0]
    first, second, third = replayed(arrivals, seed=0, shrink=2)
    assert [len(a.prompt) for a in (first, second, third)] == [512, 750, 300]
    assert second.prompt[:512] == first.prompt != third.prompt
    stories = play(TIMES, 1, POLICIES["router"], [first, second, third]).stories
    assert [story.end.stats.n_cached for story in stories] == [0, 512, 0]
    with pytest.raises(ConfigError, match="hash_ids"):
        read_trace('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}')


def test_conversations_of_a_shape_grow_by_what_was_answered():
    options = LoadOptions(
        loop="closed", concurrency="2", requests_per_client=4, turns=2, prompt_tokens="10-20",
        output_tokens="6",
    )  # fmt: skip
    workload = options.workload()
    warmup, clients = asks_of(workload, LoadCase(label="2", clients=2), "k")
    assert len(warmup) == workload.shape.warmup_requests
    assert len(clients) == 2
    one, two, three, _ = chain_of(clients[0])
    assert two.prompt[: len(one.prompt) + 6] == one.prompt + one.answer
    assert three.prompt[:10] != one.prompt[:10]
    assert len(three.prompt) <= 20


def test_chats_are_under_way_at_once_and_seeded():
    asks = [a for first in chatting(120, 3, 0.5) for a in chain_of(first)]
    assert [a.prompt for a in asks] == [a.prompt for first in chatting(120, 3, 0.5) for a in chain_of(first)]
    begun = [first.at_s for first in chatting(120, 3, 0.5)]
    assert min(begun) >= 0
    assert sum(at_s < 60 for at_s in begun) > len(begun) / 2, "not only those that begin now"
    assert (
        sum(a.at_s == first.at_s for first in chatting(120, 3, 0.5) for a in chain_of(first)) / len(asks)
        > 0.3
    )


def test_the_command_reports_as_bench_serve_does(tmp_path):
    write_times(TIMES, tmp_path / "times.json")
    words = [
        "simulate", "--model-time", str(tmp_path / "times.json"), "--engines", "1,2", "--rate", "5",
        "--requests", "40", "--prompt-tokens", "50-100", "--output-tokens", "5-9", "--set", "n_slots=4",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out/simulate.json").read_text())
    what, throughput, latency, _ = report["tables"]
    assert (
        [row[0] for row in what["rows"]]
        == [row[0] for row in throughput["rows"]]
        == ["1 engine", "2 engines"]
    )
    assert throughput["rows"][0][2] == "40 / 40 / 0 / 0"
    assert latency["columns"][2] == "client TTFT ms"
    assert (tmp_path / "out/simulate-cdf.png").exists()
    assert read_times(tmp_path / "out/model-time.json").limits.n_slots == 4


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--policy", "best"), "--policy"),
        (("--set", "n_slots"), "NAME=VALUE"),
        (("--set", "slots=4"), "n_slots"),
        (("--shape", "workloads/chat_steady.yaml"), "texts"),
        (("--shape", "workloads/intruder.yaml", "--prompt-tokens", "9"), "intruder"),
    ],
)
def test_what_cannot_be_simulated_is_said(tmp_path, monkeypatch, words, problem):
    write_times(TIMES, tmp_path / "times.json")
    with pytest.raises(ConfigError, match=problem):
        CliRunner().invoke(
            app, ["simulate", "--model-time", str(tmp_path / "times.json"), *words], catch_exceptions=False
        )


def test_route_compares_all_policies(tmp_path, monkeypatch):
    monkeypatch.setattr(route, "SAMPLE_S", 2.0)
    write_times(TIMES, tmp_path / "times.json")
    words = [
        "bench", "route", "--model-time", str(tmp_path / "times.json"), "--engines", "2", "--load", "0.5",
    ]  # fmt: skip
    result = CliRunner().invoke(
        app, [*words, "--minutes", "0.1", "--out", str(tmp_path)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "route.json").read_text())
    bars, everything = report["tables"]
    assert [row[2] for row in everything["rows"]] == list(POLICIES)
    assert bars["rows"][0][:2] == ["2", "0.5"]
    assert (tmp_path / "route-2.png").exists()


def test_foresight_measures_and_simulates_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(inside.foresight, "LOADS", {"light": 0.3})
    words = ["bench", "foresight", "--model", "builtin:scripted:0.0005", "--requests", "16", "--rounds", "1"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    errors, middle = json.loads((tmp_path / "foresight.json").read_text())["tables"]
    assert len(errors["rows"]) == 2 * 4
    assert middle["rows"][0][0] == "10%"
    assert read_times(tmp_path / "model-time.json").limits.n_slots == 16


class Feeds(BaseHTTPRequestHandler):
    """Answers as a server that goes on ticking: with one more tick each time."""

    asked = 0

    def do_GET(self):
        cls = type(self)
        cls.asked += 1
        record = {"tick_id": cls.asked}
        content = {
            "engine": {"incarnation_id": "one"}, "now_s": 0.0, "unix_s": 0.0, "next": cls.asked + 1,
            "ticks": [record] if cls.asked > 1 else [], "requests": [],
        }  # fmt: skip
        self.send_response(200 if self.headers["authorization"] == "Bearer k" else 401)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass


def test_a_run_is_recorded_from_its_beginning_to_its_end(tmp_path):
    server = HTTPServer(("127.0.0.1", 0), Feeds)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with RunRecord(tmp_path / "run.json", url, "k"):
            pass
        with pytest.raises(ConfigError, match="key"), RunRecord(tmp_path / "no.json", url, "other"):
            pass
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    recorded = json.loads((tmp_path / "run.json").read_text())
    assert [tick["tick_id"] for tick in recorded["ticks"]] == [2], "what came before is not of the run"
    assert recorded["engine"]["incarnation_id"] == "one"
