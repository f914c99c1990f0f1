"""A trace file, read back with Perfetto's own schema: nothing overlaps, nothing is missing."""

import asyncio
import json
from collections import defaultdict

import httpx2
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from rich.console import Console
from test_feed import Setup
from typer.testing import CliRunner

from cobali_ray.cli import app as cli
from cobali_ray.core.views.stats import DECODE, PREFILL
from cobali_ray.errors import ConfigError
from cobali_workloads.commands import trace as command
from cobali_workloads.trace import watching
from cobali_workloads.trace.recording import Recording
from cobali_workloads.trace.shapes import Slice, in_order

PHASES = ("plan", "forward", "sample", "publish")


class Shown:
    """What a viewer makes of a trace file: rows by path, slices nested by replaying begins and ends."""

    def __init__(self, path):
        self.trace = pb.Trace.FromString(path.read_bytes())
        self.names, self.parents, self.ranks = {}, {}, {}
        self.slices, self.counters = defaultdict(list), defaultdict(list)
        events = []
        for packet in self.trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                self._describe(packet.track_descriptor)
            elif packet.HasField("track_event"):
                events.append(packet)
        stacks = defaultdict(list)
        for packet in sorted(events, key=lambda packet: packet.timestamp):  # stable, as the viewer sorts
            self._event(packet.timestamp, packet.track_event, stacks)
        assert not any(stacks.values()), "every slice ends"

    def _describe(self, track):
        assert track.uuid not in self.names, "each track is described once"
        self.names[track.uuid] = track.name or track.process.process_name
        if track.parent_uuid:
            assert track.parent_uuid in self.names, "a parent comes before its children"
            self.parents[track.uuid] = track.parent_uuid
            self.ranks[track.uuid] = track.sibling_order_rank

    def _event(self, at, event, stacks):
        path, stack = self.path(event.track_uuid), stacks[event.track_uuid]
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            self.counters[path].append((at, event.double_counter_value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            one = {"name": event.name, "start": at, "depth": len(stack), "flows": list(event.flow_ids)}
            one["args"] = {a.name: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations}
            one["up"] = stack[-1]["name"] if stack else None
            stack.append(one)
            self.slices[path].append(one)
        else:
            assert event.type == pb.TrackEvent.TYPE_SLICE_END
            stack.pop()["end"] = at

    def path(self, uuid):
        up = self.parents.get(uuid)
        return (*(self.path(up) if up else ()), self.names[uuid])

    def rows(self, *words):
        """Return the slices of all rows whose path ends with names that start so."""
        return {
            path[-1]: slices
            for path, slices in self.slices.items()
            if all(name.startswith(word) for name, word in zip(path[-len(words) :], words, strict=True))
        }


def ns(seconds):
    return round(seconds * 1e9)


def record(setup, path, **changes):
    feed = asyncio.run(setup.read(last=4096))
    feed["engine"]["model"] = "tiny"
    feed["engine"] |= changes
    recording = Recording()
    recording.add(feed)
    watching.write(recording, path)
    return feed, Shown(path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.pftrace"


def busy(**kwargs):
    s = Setup(n_slots=2, **kwargs)
    for i in range(5):
        s.submit(f"r{i}", "a prompt of many tokens"[: 3 + 5 * i], max_tokens=3 + i)
    return s


@pytest.mark.parametrize("overlaps", [False, True], ids=["inline", "overlap"])
def test_ticks_and_their_phases_are_where_the_records_say(out, overlaps):
    s = busy(overlaps=overlaps)
    s.run()
    feed, shown = record(s, out, overlaps=overlaps)
    rows = shown.slices["cobali_ray tiny, engine 0", "host: tick"]
    ticks = [one for one in rows if one["depth"] == 0]
    assert [one["name"] for one in ticks] == [f"tick {tick['tick_id']}" for tick in feed["ticks"]]
    for one, tick in zip(ticks, feed["ticks"], strict=True):
        assert one["start"] == pytest.approx(ns(tick["started_s"]), abs=2)
        assert one["end"] == pytest.approx(ns(tick["started_s"] + tick["total_s"]), abs=2)
        assert one["args"]["n_decode"] == tick["n_decode"]
        for phase in PHASES:
            found = [
                p
                for p in rows
                if p["name"] == phase and one["start"] <= p["start"] and p["end"] <= one["end"]
            ]
            if phase == "publish" and not tick["publish_s"]:
                continue
            (slice_,) = found
            assert slice_["end"] - slice_["start"] == pytest.approx(ns(tick[f"{phase}_s"]), abs=2)
            assert slice_["up"] == ("forward" if phase == "publish" and overlaps else one["name"])
    device = shown.slices["cobali_ray tiny, engine 0", "device: forward pass"]
    assert [one["end"] - one["start"] for one in device] == pytest.approx(
        [ns(tick["forward_s"]) for tick in feed["ticks"]], abs=2
    )


def test_every_request_has_its_spans(out):
    s = busy()
    s.run()
    feed, shown = record(s, out)
    queued = [one for row in shown.rows("queue", "waiting").values() for one in row]
    slots = shown.rows("slots", "slot")
    assert sorted(slots) == ["slot 0", "slot 1"]
    for life in feed["requests"]:
        name = life["request_id"]
        (wait,) = (one for one in queued if one["args"]["request_id"] == name)
        assert wait["start"] == pytest.approx(ns(life["arrived_s"]), abs=2)
        assert wait["end"] == pytest.approx(ns(life["assigned_s"]), abs=2)
        row = slots[f"slot {life['slot_id']}"]
        (stay,) = (one for one in row if one["name"] == name)
        assert stay["flows"] == wait["flows"] != []
        inside = [one for one in row if stay["start"] <= one["start"] < stay["end"] and one["depth"] > 0]
        (prefill,) = (one for one in inside if one["name"] == "prefill")
        (decode,) = (one for one in inside if one["name"] == "decode")
        assert prefill["end"] == decode["start"] == pytest.approx(ns(life["first_token_s"]), abs=2)
        assert stay["args"]["ttft_s"] == pytest.approx(life["first_token_s"] - life["arrived_s"], abs=1e-6)
        chunks = [one["name"] for one in inside if one["depth"] == 2]
        assert {one["up"] for one in inside if one["depth"] == 2} == {"prefill"}
        spans = [
            (start, length)
            for tick in feed["ticks"]
            for slot_id, start, length, kind in tick["spans"]
            if kind == PREFILL
            and slot_id == life["slot_id"]
            and life["assigned_s"] <= tick["started_s"] <= life["first_token_s"]
        ]
        assert chunks == [f"{start}..{start + length}" for start, length in spans]
        assert sum(length for _, length in spans) == life["n_prompt"]


def test_a_preempted_request_waits_and_runs_again(out):
    s = Setup(n_slots=2, n_cells=64, n_ctx=60)
    s.submit("a", "0123456789", max_tokens=40)
    s.submit("b", "0123456789", max_tokens=40)
    s.run()
    feed, shown = record(s, out)
    (life,) = (life for life in feed["requests"] if life["n_preempted"])
    stays = [
        one
        for row in shown.rows("slots", "slot").values()
        for one in row
        if one["name"] == life["request_id"]
    ]
    waits = [
        one
        for row in shown.rows("queue", "waiting").values()
        for one in row
        if one["args"]["request_id"] == life["request_id"]
    ]
    waits.sort(key=lambda one: one["start"])
    stays.sort(key=lambda one: one["start"])
    assert len(stays) == len(waits) == life["n_preempted"] + 1
    assert [one["name"] for one in waits] == ["queued", *["queued again"] * life["n_preempted"]]
    for before, wait, after in zip(stays, waits[1:], stays[1:], strict=False):
        assert before["end"] == wait["start"] <= wait["end"] == after["start"]
    names = [one["name"] for row in shown.rows("slots", "slot").values() for one in row if one["depth"] == 1]
    assert "prefill again" in names


def test_a_request_that_goes_on_elsewhere_is_followed_there_by_the_wall_clock(out):
    first, second = Setup(n_slots=1), Setup(n_slots=1)
    first.submit("r", "hello", max_tokens=9)
    first.submit("other", "hello", max_tokens=9)
    for _ in range(3):
        first.tick()
    second.submit("r~1", "hello", max_tokens=9, sent_tokens=(7, 8), attempt=1, tenant="alice")
    second.run()
    recording, feeds = Recording(), []
    for setup, node, unix_s in ((first, "10.0.0.1", 1000.0), (second, "10.0.0.2", 1007.0)):
        feed = asyncio.run(setup.read(last=4096))
        feed["engine"] |= {"model": "tiny", "node": node}
        feed["unix_s"] = unix_s + feed["now_s"]
        recording.add(feed)
        feeds.append(feed)
    watching.write(recording, out)
    shown = Shown(out)
    one, two = (f"cobali_ray tiny, engine 0 on 10.0.0.{i}" for i in (1, 2))
    (left, _) = shown.slices[one, "slots", "slot 0"][:2]
    (wait,) = shown.slices[two, "queue", "waiting 1"]
    assert (left["name"], wait["name"]) == ("r", "continued")
    assert {"tenant": "alice", "attempt": 1, "n_said": 2}.items() <= wait["args"].items()
    assert "attempt" not in left["args"]
    assert len(set(left["flows"]) & set(wait["flows"])) == 1, "an arrow leads there"
    queued = [s for path, row in shown.slices.items() if path[:2] == (one, "queue") for s in row]
    assert len(queued) == 2
    assert not any(set(s["flows"]) & set(wait["flows"]) for s in queued)
    life = feeds[1]["requests"][0]
    assert wait["start"] == pytest.approx(ns(life["arrived_s"] + 7.0), abs=2), "7 s later by the wall clock"
    names = [s["name"] for s in shown.slices[two, "slots", "slot 0"] if s["depth"] == 1]
    assert names == ["prefill again", "decode"]


def test_open_and_queued_requests_last_until_now(out):
    s = Setup(n_slots=1)
    s.submit("runs", "hello", max_tokens=9)
    s.submit("waits", "hello", max_tokens=9)
    s.submit("gives up", "hello", max_tokens=9)
    s.tick()
    s.engine.cancel("gives up")
    s.tick()
    feed, shown = record(s, out)
    (row,) = shown.rows("slots", "slot").values()
    now = ns(feed["now_s"])
    assert [one["name"] for one in row if one["end"] == pytest.approx(now, abs=2)] == ["runs", "decode"]
    queued = {
        one["args"]["request_id"]: one for row in shown.rows("queue", "waiting").values() for one in row
    }
    assert queued["waits"]["end"] == pytest.approx(now, abs=2)
    ended = next(life["ended_s"] for life in feed["requests"] if life["request_id"] == "gives up")
    assert queued["gives up"]["end"] == pytest.approx(ns(ended), abs=2)
    assert queued["gives up"]["args"]["error"] == "RequestCancelledError"


def test_records_of_before_engines_had_ids_are_still_read(out):
    s = busy()
    s.run()
    feed = asyncio.run(s.read(last=4096))
    engine = feed["engine"]
    engine |= {"model": "tiny", "id": engine.pop("incarnation_id")}
    del engine["engine_id"]
    recording = Recording()
    recording.add(feed)
    watching.write(recording, out)
    assert len(Shown(out).slices["cobali_ray tiny, engine 0", "host: tick"]) > 2


def test_counters_follow_the_records(out):
    s = busy()
    s.run()
    s.clock.advance(1.0)
    s.submit("late", "hello", max_tokens=1)
    s.run()
    feed, shown = record(s, out)
    tokens = shown.counters["cobali_ray tiny, engine 0", "tokens per tick"]
    assert [value for _, value in tokens if value] == [t["n_decode"] + t["n_prefill"] for t in feed["ticks"]]
    assert [value for _, value in tokens].count(0) == 2, "a pause is no load"
    for name, field in (("queue length", "n_queued"), ("KV cells used", "n_cells_used")):
        assert [value for _, value in shown.counters["cobali_ray tiny, engine 0", name]] == [
            tick[field] for tick in feed["ticks"]
        ]


def test_the_wall_clock_and_the_order_of_rows_are_told(out):
    s = busy()
    s.run()
    feed, shown = record(s, out)
    (snapshot,) = (p.clock_snapshot for p in shown.trace.packet if p.HasField("clock_snapshot"))
    clocks = {clock.clock_id: clock.timestamp for clock in snapshot.clocks}
    assert clocks == {
        pb.BUILTIN_CLOCK_BOOTTIME: ns(feed["now_s"]),
        pb.BUILTIN_CLOCK_REALTIME: ns(feed["unix_s"]),
    }
    top = [uuid for uuid, up in shown.parents.items() if shown.path(up) == ("cobali_ray tiny, engine 0",)]
    assert [shown.names[uuid] for uuid in sorted(top, key=shown.ranks.get)] == [
        "host: tick", "device: forward pass", "slots", "queue", "tokens per tick", "queue length",
        "KV cells used",
    ]  # fmt: skip


def test_neighbours_that_overlap_by_rounding_are_cut():
    a, b = Slice(0.0, 1.0 + 1e-9, "a"), Slice(1.0, 2.0, "b", children=(Slice(1.0, 2.5, "c"),))
    one, two = in_order([b, a], 0.0, 2.0)
    assert (one.name, two.start_s, two.end_s) == ("a", 1.0 + 1e-9, 2.0)
    assert (two.children[0].start_s, two.children[0].end_s) == (1.0 + 1e-9, 2.0)


class FakeServer:
    """Answers /debug/ticks from an engine that ticks between two questions; restarts when told."""

    def __init__(self):
        self.setup, self.asked, self.status = busy(), [], 200
        self.ready = {"status": "ready", "engines": [{"engine_id": "0"}]}

    def __call__(self, request):
        if request.url.path == "/ready":
            return httpx2.Response(200, json=self.ready)
        self.asked.append(dict(request.url.params))
        if self.status != 200:
            return httpx2.Response(self.status, json={"error": {"message": "no"}})
        body = asyncio.run(
            self.setup.read(last=int(request.url.params["last"]), since=int(request.url.params["since"]))
        )
        body["engine"]["model"] = "tiny"
        return httpx2.Response(200, json=body)

    def watcher(self):
        http = httpx2.Client(transport=httpx2.MockTransport(self), base_url="http://server")
        return watching.Watcher(http, Recording())


def test_watching_takes_what_happens_from_now_on_and_follows_a_new_engine(out):
    server = FakeServer()
    server.setup.tick()
    watcher = server.watcher()
    watcher.begin()
    assert watcher.recording.n_ticks == 0, "what was before is not recorded"
    server.setup.run()
    assert watcher.look()
    n_old = server.setup.collector.seen(1).next - 1
    assert watcher.recording.n_ticks == n_old
    server.status = 503
    assert not watcher.look()
    server.status, server.setup = 200, busy()
    n_new = len(server.setup.run())
    assert watcher.look()
    assert watcher.recording.n_ticks == n_old + n_new
    assert watcher.look()
    assert watcher.recording.n_ticks == n_old + n_new, "nothing is taken twice"
    watching.write(watcher.recording, out)
    shown = Shown(out)
    assert [name for uuid, name in shown.names.items() if uuid not in shown.parents] == [
        "cobali_ray tiny, engine 0"
    ] * 2
    flows = [f for rows in shown.slices.values() for one in rows for f in one["flows"]]
    assert all(flows.count(flow) == 2 for flow in flows), "arrows of two engines do not mix"


def test_watching_lasts_as_long_as_asked():
    server = FakeServer()
    at = [0.0]

    def sleep(seconds):
        at[0] += seconds
        server.setup.tick()

    watcher = server.watcher()
    command._watch([watcher], 1.2, Console(quiet=True), now=lambda: at[0], sleep=sleep)
    assert at[0] == pytest.approx(1.2)
    assert watcher.recording.n_ticks == 3


def test_a_saved_answer_becomes_a_trace(tmp_path, out):
    s = busy()
    s.run()
    feed = asyncio.run(s.read())
    feed["engine"]["model"] = "tiny"
    saved = tmp_path / "ticks.json"
    saved.write_text(json.dumps(feed))
    result = CliRunner().invoke(cli, ["trace", "--from", str(saved), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert len(Shown(out).rows("slots", "slot")) == 2
    assert sum(kind == DECODE for tick in feed["ticks"] for *_, kind in tick["spans"]) > 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engine": {"id": "x"}}', '{"engine": 1, "ticks": []}'])
def test_what_is_no_answer_is_said(tmp_path, out, text):
    saved = tmp_path / "ticks.json"
    saved.write_text(text)
    result = CliRunner().invoke(cli, ["trace", "--from", str(saved), "-o", str(out)])
    assert isinstance(result.exception, ConfigError)
    assert not out.exists()
