"""What telemetry says of an engine over the scripted backend: the feed of ticks and lives, first tokens."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_engine import Setup as EngineSetup

from cobali_ray.actors.ticks import TickFeeder
from cobali_ray.backend.scripted import ByteVocab
from cobali_ray.core.request.events import End
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.core.views.stats import DECODE, PREFILL, TickStats
from cobali_ray.errors import RequestCancelledError
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.log import TICK_FIELDS

FIELDS = {
    "request_id", "slot_id", "state", "n_prompt", "n_cached", "n_computed", "n_output", "arrived_s",
    "assigned_s", "first_token_s", "ended_s", "finish_reason", "error", "n_preempted", "stays",
    "received_s", "cached_from", "tenant", "priority", "attempt", "n_said", "model", "x_request_id",
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["inline", "overlap"])
def overlaps(request):
    return request.param


class Setup(EngineSetup):
    """An engine with a collector that looks on as the loop lets it."""

    def __init__(self, *, ring=4096, itl_target_s="auto", words=None, **kwargs):
        super().__init__(**kwargs)
        self.collector = Collector(self.limits, model_name="m", ring=ring)
        self.feeder = TickFeeder(
            self.collector, self.clock, limits={"n_slots": 4}, itl_target_s=itl_target_s, words=words
        )
        submit, sink = self.engine.submit, self.engine._sink
        self.engine.submit = lambda request: self.collector.on_submit(submit(request))

        def watch(batch):
            for _, event in batch:
                if isinstance(event, End):
                    self.collector.on_end(event)
            sink(batch)

        self.engine._sink = watch

    def tick(self):
        stats = super().tick()
        if stats is not None:
            self.collector.on_tick(stats)
        return stats

    async def read(self, last=200, since=0, before=None, tenant=""):
        feed = await self.feeder.read(last, since, before)
        body = json.loads(feed.body_for(tenant))
        assert (feed.incarnation_id, feed.next) == (body["engine"]["incarnation_id"], body["next"])
        return body

    async def lives(self, **kwargs):
        return {life["request_id"]: life for life in (await self.read(**kwargs))["requests"]}


async def test_spans_name_who_computed_what(overlaps):
    s = Setup(overlaps=overlaps)
    s.submit("a", "hi", max_tokens=6)
    s.tick()
    s.submit("b", "a prompt of 21 tokens", max_tokens=3)
    s.run()
    spans = [tick["spans"] for tick in (await s.read())["ticks"]]
    decode = [[0, 2 + i, 1, DECODE] for i in range(5)]
    chunks = [[1, 0, 8, PREFILL], [1, 8, 8, PREFILL], [1, 16, 5, PREFILL], [1, 21, 1, DECODE]]
    expected = [[[0, 0, 2, PREFILL]], *([a, b] for a, b in zip(decode, chunks, strict=False))]
    assert spans[:5] == expected[:5]
    assert [len(row) for row in spans[5:]] == [2]


async def test_a_lone_prompt_token_is_no_decode():
    s = Setup()
    s.submit("a", "x", max_tokens=2)
    s.run()
    assert [t["spans"] for t in (await s.read())["ticks"]] == [[[0, 0, 1, PREFILL]], [[0, 1, 1, DECODE]]]


async def test_a_tick_has_every_field_of_its_record():
    s = Setup()
    s.submit("a", "hello", max_tokens=4)
    s.submit("b", "world", max_tokens=4)
    records = s.run()
    body = await s.read()
    assert len(body["ticks"]) == len(records)
    for tick, stats in zip(body["ticks"], records, strict=True):
        assert set(tick) == {*TICK_FIELDS, "spans"}
        assert {*TICK_FIELDS, "plan", "ttfts_s"} == set(TickStats.__slots__)
        for name in set(TICK_FIELDS) - {"gaps_s"}:
            assert tick[name] == pytest.approx(getattr(stats, name), abs=1e-9)
        assert tick["gaps_s"] == [round(gap, 6) for gap in stats.gaps_s]
        assert sum(length for _, _, length, _ in tick["spans"]) == stats.n_tokens
    assert body["next"] == len(records)
    incarnation_id = s.feeder.incarnation_id
    assert body["engine"] == {
        "engine_id": "0", "node": "", "incarnation_id": incarnation_id, "n_slots": 4, "itl_target": "auto",
        "itl_target_s": None,
    }  # fmt: skip
    assert body["unix_s"] > 1.7e9


async def test_a_life_from_queue_to_end():
    s = Setup(n_slots=1)
    s.submit("a", "0123456789", max_tokens=3)
    s.submit("b", "hello", max_tokens=2)
    lives = await s.lives()
    assert set(lives["a"]) == FIELDS
    assert [lives["a"][name] for name in ("tenant", "priority", "attempt", "n_said")] == ["", 0, 0, 0]
    assert [lives[i]["state"] for i in "ab"] == ["queued", "queued"]
    assert (lives["a"]["slot_id"], lives["a"]["assigned_s"], lives["a"]["stays"]) == (None, None, [])
    s.tick()
    lives = await s.lives()
    assert (lives["a"]["state"], lives["a"]["n_computed"], lives["a"]["slot_id"]) == ("prefilling", 8, 0)
    assert lives["b"]["state"] == "queued"
    s.tick()
    a = (await s.lives())["a"]
    assert (a["state"], a["n_computed"], a["n_output"]) == ("generating", 10, 1)
    assert a["arrived_s"] < a["assigned_s"] < a["first_token_s"]
    s.run()
    lives = await s.lives()
    for request_id, n_prompt, n_output in (("a", 10, 3), ("b", 5, 2)):
        life, stats = lives[request_id], s.end(request_id).stats
        assert (life["state"], life["finish_reason"], life["error"]) == ("ended", "length", None)
        assert (life["n_prompt"], life["n_output"], life["slot_id"]) == (n_prompt, n_output, 0)
        assert life["n_computed"] == n_prompt + n_output - 1, "the last token is never computed"
        assert life["ended_s"] - life["arrived_s"] == pytest.approx(stats.e2e_s)
        assert life["first_token_s"] - life["arrived_s"] == pytest.approx(stats.ttft_s)
        ((slot_id, since_s, until_s),) = life["stays"]
        assert (slot_id, since_s) == (0, life["assigned_s"])
        assert since_s < until_s <= life["ended_s"]


async def test_the_documents_name_every_field():
    text = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    feed, request = (
        {
            name
            for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", row)
        }
        for table in re.findall(r"\| field \| meaning \|\n(.*?)\n\n", text + "\n", re.DOTALL)
    )
    assert request == FIELDS | {"prompt"}
    assert feed == set(await Setup().read())


async def test_a_prefix_hit_and_a_cancel_are_seen():
    s = Setup(n_slots=1, min_prefix=2)
    s.submit("a", "0123456789", max_tokens=1)
    s.run()
    s.submit("b", "01234567xx", max_tokens=9)
    s.submit("c", "never in a slot", max_tokens=9)
    s.tick()
    s.engine.cancel("b")
    s.engine.cancel("c")
    s.tick()
    lives = await s.lives()
    assert (lives["b"]["n_cached"], lives["b"]["error"]) == (8, RequestCancelledError.__name__)
    assert lives["b"]["finish_reason"] is None
    assert (lives["c"]["slot_id"], lives["c"]["n_computed"], lives["c"]["stays"]) == (None, 0, [])


async def test_every_stay_of_a_preempted_request_is_kept(overlaps):
    s = Setup(n_slots=2, n_cells=64, n_ctx=60, overlaps=overlaps)
    s.submit("a", "0123456789", max_tokens=40)
    s.submit("b", "0123456789", max_tokens=40)
    s.run()
    lives = await s.lives()
    assert sum(life["n_preempted"] for life in lives.values()) > 0
    for life in lives.values():
        assert len(life["stays"]) == life["n_preempted"] + 1
        moments = [at for _, since_s, until_s in life["stays"] for at in (since_s, until_s)]
        assert moments == sorted(moments)
        assert moments[-1] <= life["ended_s"]
        assert life["n_computed"] == 49


async def test_a_stop_string_found_late_closes_the_stay_at_the_end():
    s = Setup(overlaps=True)
    s.submit("a", "hello", max_tokens=30, stop=("z", "e", "a", "o", "i", "n", "t", "s", "r"),
             sampling=SamplingParams(temperature=0, ignore_eos=True))  # fmt: skip
    while s.engine.scheduler.n_open:
        s.tick()
    life = (await s.lives())["a"]
    assert life["finish_reason"] == "stop"
    assert life["stays"][-1][2] == pytest.approx(life["ended_s"])
    assert life["n_computed"] > life["n_prompt"]


async def test_reading_on_gives_each_tick_and_each_end_once():
    s = Setup()
    seen, ended, since = [], [], 0
    for i in range(12):
        s.submit(f"r{i}", "hello", max_tokens=1 + i % 4)
        s.tick()
        if i % 3 == 0:
            body = await s.read(since=since)
            since = body["next"]
            seen += [tick["tick_id"] for tick in body["ticks"]]
            ended += [life["request_id"] for life in body["requests"] if life["state"] == "ended"]
    s.run()
    body = await s.read(since=since)
    seen += [tick["tick_id"] for tick in body["ticks"]]
    ended += [life["request_id"] for life in body["requests"] if life["state"] == "ended"]
    assert seen == list(range(body["next"]))
    assert sorted(ended) == sorted({f"r{i}" for i in range(12)})


async def test_last_before_and_the_ring_bound_what_is_shown():
    s = Setup(ring=8)
    s.submit("early", "hello", max_tokens=2)
    s.run()
    s.submit("late", "hello", max_tokens=20)
    s.run()
    n = (await s.read())["next"]

    async def ids(**kwargs):
        return [tick["tick_id"] for tick in (await s.read(**kwargs))["ticks"]]

    assert await ids() == list(range(n - 8, n))
    assert await ids(last=3) == list(range(n - 3, n))
    assert await ids(last=3, before=n - 1) == list(range(n - 4, n - 1))
    assert await ids(since=n - 2) == [n - 2, n - 1]
    assert await ids(since=n + 5) == []
    assert set(await s.lives()) == {"late"}, "who ended before the ticks shown is not shown"
    assert set(await s.lives(since=n)) == set()


async def test_the_ring_of_ended_requests_is_bounded():
    s = Setup(ring=4)
    for i in range(9):
        s.submit(f"r{i}", "hi", max_tokens=1)
    s.run()
    assert len(await s.lives()) == 4
    assert not s.collector._lives._open


async def test_prompts_are_shown_only_where_the_setting_says_so():
    long = "secret " * 1000
    request = SimpleNamespace(request_id="a", prompt=tuple(ByteVocab().tokenize(long)))
    for words, shown in ((None, None), (ByteVocab(), long[:2000])):
        s = Setup(words=words)
        s.feeder.note(request)
        s.submit("a", "hi", max_tokens=1)
        assert (await s.lives())["a"].get("prompt") == shown


async def test_a_tenant_reads_only_the_ids_that_it_chose_itself():
    said = '{"x_request_id":"ann/mine"}, {"x_request_id":"/'
    s = Setup(words=ByteVocab())
    s.feeder.note(SimpleNamespace(request_id="a", prompt=tuple(ByteVocab().tokenize(said))))
    s.submit("a", said, tenant="ann", x_request_id="a-1")
    s.submit("b", "hi", tenant="bob", x_request_id="b-1")
    s.submit("c", "hi", tenant="bob")
    for tenant, shown in (("ann", ("a-1", "", "")), ("bob", ("", "b-1", "")), ("", ("", "", ""))):
        lives = await s.lives(tenant=tenant)
        assert tuple(lives[name]["x_request_id"] for name in "abc") == shown
        assert lives["a"]["prompt"] == said


@pytest.mark.parametrize(
    ("itl_target_s", "seen", "shown"),
    [
        pytest.param(None, [0.0, 0.05], ("off", None), id="off"),
        pytest.param(0.08, [0.0, 0.05], ("fixed", 0.08), id="set"),
        pytest.param("auto", [0.0, 0.05, 0.0], ("auto", 0.05), id="auto-the-last-one-seen"),
        pytest.param("auto", [0.0], ("auto", None), id="auto-none-yet"),
    ],
)
async def test_the_itl_target(itl_target_s, seen, shown):
    from telemetry_records import make_tick

    s = Setup(itl_target_s=itl_target_s)
    for i, target_s in enumerate(seen):
        s.collector.on_tick(make_tick(i, target_s=target_s))
    for since in (0, len(seen)):
        engine = (await s.read(since=since))["engine"]
        assert (engine["itl_target"], engine["itl_target_s"]) == shown


# -- TTFT is counted when the first token comes, once, whatever becomes of the request afterwards


def ttft(setup):
    return setup.collector.snapshot().histogram("engine_ttft_seconds")


def first_tokens(setup):
    """Return arrival to first token of every request that got one, as the feed tells it."""
    lives = setup.collector.seen(9999).lives()
    return [life.first_token_s - life.arrived_s for life in lives if life.first_token_s is not None]


def test_it_counts_long_before_the_answer_ends(overlaps):
    s = Setup(overlaps=overlaps, n_slots=1)
    s.submit("long", "a prompt of 21 tokens", max_tokens=40)
    s.submit("waits", "hello", max_tokens=2)
    s.tick()
    assert ttft(s).count == 0, "its prompt is not computed yet"
    for _ in range(3):
        s.tick()
    snapshot = s.collector.snapshot()
    assert sum(snapshot.counters["requests"].values()) == 0, "no request has ended"
    assert ttft(s).count == 1
    assert ttft(s).sum == pytest.approx(first_tokens(s)[0])
    s.run()
    assert ttft(s).count == 2, "not again at the end"


def test_each_request_with_a_first_token_counts_once(overlaps):
    s = Setup(overlaps=overlaps, n_slots=3, n_cells=64, n_ctx=60)
    for i in range(12):
        s.submit(f"r{i}", "a prompt of many tokens"[: 1 + 4 * (i % 5)], max_tokens=(1, 30, 35, 2)[i % 4])
    ticks = 0
    while s.engine.has_work:
        s.tick()
        ticks += 1
        if ticks == 3:
            s.engine.cancel("r1")  # runs
            s.engine.cancel("r11")  # waits
            s.submit("late", "hello", max_tokens=1)
    expected = first_tokens(s)
    assert s.collector.snapshot().totals["preemptions"] > 0
    assert ttft(s).count == len(expected) == 12, "one of thirteen left the queue before"
    assert ttft(s).sum == pytest.approx(sum(expected))


def test_an_answer_that_began_elsewhere_has_its_first_token_there(overlaps):
    s = Setup(overlaps=overlaps)
    s.submit("a~1", "hello", max_tokens=9, sent_tokens=(7, 8), attempt=1)
    s.run()
    assert s.collector.snapshot().counters["requests"]["length"] == 1
    assert ttft(s).count == 0
