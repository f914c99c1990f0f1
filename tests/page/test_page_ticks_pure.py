"""What the view of ticks computes before it draws: axes, columns, sentences, the ITL target, links, files."""

import pytest
from packets import ENGINE, packet, request, tick

from cobali_workloads.trace.recording import Recording
from cobali_workloads.trace.timeline import timeline_of

pytest.importorskip("playwright")

WITH = """async (module, { packet, arg }) => {
    const { History } = await import("/ui/feed/history.js");
    const { AXES } = await import("/ui/plots/axis.js");
    const history = new History(packet);
    return (%s)(module, history, arg, AXES);
}"""


@pytest.fixture
def told(of):
    """Ask a module something about the history of a packet."""
    return lambda module, ask, packet, arg=None: of(module, WITH % ask, {"packet": packet, "arg": arg})


def test_a_place_in_time_is_a_tick_only_where_there_is_one(told):
    ask = """({ tickAt, ticksBetween }, history, places, { time }) => [
        places.map(([x, slack]) => tickAt(history, time, x, slack)?.tick_id ?? null),
        ticksBetween(history, time, 1.01, 5).map((tick) => tick.tick_id),
    ]"""
    ticks = [tick(0, 1.0), tick(1, 1.02), tick(2, 5.0), tick(3, 5.02)]  # and nothing for four seconds
    places = [[1.01, 0], [1.03, 0], [3.0, 0], [3.0, 0.5], [4.9, 0.2], [5.021, 0], [9.0, 0.1]]
    assert told("plots/axis.js", ask, packet(ticks), places) == [[0, 1, None, None, 2, 3, None], [0, 1]]


def test_marks_of_time_are_round_on_the_wall_clock(told):
    ask = """({ marksOf }, history, arg, { time }) =>
        marksOf(time, 1.3, 3.4, 4, history).map(({ at, text }) => [at, text.slice(-5)])"""
    marks = told("plots/axis.js", ask, packet([tick()]) | {"unix_s": 1000.25})
    assert marks == [[1.75, "16:40"], [2.75, "16:41"]]


def test_marks_of_ticks_begin_at_tick_0(told):
    ask = """({ marksOf }, history, arg, { ticks }) =>
        marksOf(ticks, -0.5, 153.5, 4, history).map(({ text }) => text)"""
    assert told("plots/axis.js", ask, packet([tick()])) == ["tick 0", "tick 50", "tick 100", "tick 150"]


def test_a_pixel_is_one_column_and_shows_the_tick_with_most(told):
    ask = """({ columnsOf, peaks, mostIn }, history, nPixels, { ticks: axis }) => {
        const columns = columnsOf(history.ticks, axis, -0.5, 299.5, nPixels);
        const shown = peaks(columns, (tick) => tick.n_prefill);
        return [columns.length, mostIn(columns), shown.map((tick) => tick.tick_id)];
    }"""
    ticks = [tick(i, chunks=[(2, 0, i % 7)]) for i in range(300)]
    assert told("plots/columns.js", ask, packet(ticks), 300)[:2] == [300, 1], "one each where there is room"
    n, most, shown = told("plots/columns.js", ask, packet(ticks), 30)
    assert (n, most) == (31, 10), "the first pixel begins before the window"
    assert sum(i % 7 == 6 for i in shown) == 30, "what is rare is not lost"


SAY = "({ sentencesOf }, history, id) => sentencesOf(history, history.tick(id))"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        pytest.param(
            tick(1, decodes=(0, 1), chunks=[(2, 0, 63)], predicted_s=0.0178, target_s=0.03, n_sampled=2),
            [
                "2 streams got a token.",
                "63 prompt tokens of one request were read, up to 63 of 200.",
                "The tick took 20.0 ms, 17.0 ms of it for the forward pass; the prediction was 17.8 ms.",
                "The ITL target of 30.0 ms was met.",
            ],
            id="streams-and-a-prompt",
        ),
        pytest.param(
            tick(
                1,
                decodes=(),
                chunks=[(2, 137, 63)],
                total_s=0.5,
                n_sampled=1,
                n_finished=1,
                n_queued=2,
                n_queued_tokens=80,
            ),
            [
                "63 prompt tokens of one request were read, the last of 200.",
                "One request got its first token.",
                "One request ended.",
                "The tick took 500 ms, 17.0 ms of it for the forward pass.",
                "2 requests with 80 prompt tokens wait for a slot.",
            ],
            id="the-end-of-a-prompt",
        ),
        pytest.param(
            tick(1, decodes=(0,), total_s=0.06, plan_s=0.041, n_sampled=1),
            [
                "One stream got a token.",
                "The tick took 60.0 ms, 41.0 ms of it for planning.",
                "That is longer than the ITL target of 30.0 ms: planning took 41.0 ms, usually 1.00 ms.",
            ],
            id="late",
        ),
    ],
)
def test_a_tick_is_told_in_sentences(told, one, said):
    around = [tick(0), one, tick(2), tick(3)]
    found = told("record/sentences.js", SAY, packet(around, [request()]), 1)
    assert [sentence.replace("\u202f", " ") for sentence in found] == said


ABOUT = """({ aboutTarget }, history) => {
    const { summary, worst, legend, note } = aboutTarget(history.engine, history.ticks);
    return { summary, worst: worst?.tick_id ?? null, legend, note };
}"""


@pytest.mark.parametrize(
    ("late", "cause"),
    [
        pytest.param({"plan_s": 0.03}, "for planning", id="plan"),
        pytest.param({"sample_s": 0.03}, "for sampling", id="sample"),
        pytest.param({"publish_s": 0.03}, "for publishing", id="publish"),
        pytest.param({}, "for the time between the phases", id="rest"),
        pytest.param({"forward_s": 0.045, "predicted_s": 0.02}, "longer than predicted", id="slower"),
        pytest.param({"forward_s": 0.045, "predicted_s": 0.045}, "for the streams' own tokens", id="decode"),
        pytest.param(
            {"forward_s": 0.045, "chunks": [(2, 0, 300)], "target_s": 0.03},
            "for prompt tokens read",
            id="prefill",
        ),
    ],
)
def test_what_made_a_tick_longer_than_the_target_is_said(told, late, cause):
    ticks = [*(tick(i) for i in range(6)), tick(6, total_s=0.048, **late), tick(7, decodes=(), total_s=0.5)]
    found = told("plots/itl.js", ABOUT, packet(ticks))
    assert found["summary"].startswith("1 of 7 ticks with streams in view was longer than the ITL target: 1 ")
    assert cause in found["summary"]
    assert found["worst"] == 6, "where nobody streams, nobody waits for a token"


def test_streams_that_are_slow_by_themselves_are_not_blamed_on_prompts(told):
    slow = {"forward_s": 0.045, "total_s": 0.048}
    ticks = [*(tick(i, **slow) for i in range(6)), tick(6, chunks=[(2, 0, 4)], target_s=0.03, **slow)]
    assert "7 for the streams' own tokens" in told("plots/itl.js", ABOUT, packet(ticks))["summary"]


NOW = "({ targetNow }, history, nRunning) => targetNow(history.engine, history.ticks.at(-1), nRunning)"


def test_what_the_target_is_worth_just_now(told):
    fixed, auto = packet([tick()]), packet([tick()])
    auto["engine"] = ENGINE | {"itl_target": "auto", "itl_target_s": None}
    off = packet([tick()]) | {"engine": ENGINE | {"itl_target": "off", "itl_target_s": None}}
    reads = packet([tick(target_s=0.03)])
    assert told("plots/itl.js", NOW, fixed, 0) == "nothing is running"
    assert told("plots/itl.js", NOW, fixed, 2) == "no prompt is being read beside streams"
    assert told("plots/itl.js", NOW, reads, 2).startswith("prompts are read in chunks")
    unmet = packet([tick(target_s=0.3)])
    assert told("plots/itl.js", NOW, unmet, 2).startswith(
        "cannot be met: the streams' own tokens take longer, so the aim is gaps of 300"
    )
    assert told("plots/itl.js", NOW, auto, 2).startswith("automatic: set once a prompt arrives")
    assert told("plots/itl.js", NOW, off, 2).startswith("off:")
    assert told("plots/itl.js", ABOUT, auto)["legend"] == "ITL target not needed yet"
    found = told("plots/itl.js", ABOUT, off)
    assert found["note"].startswith("No target is set (itl_target_ms: off)")
    assert (found["summary"], found["worst"], found["legend"]) == ("", None, "no ITL target")


@pytest.mark.parametrize(
    ("hash_", "asked"),
    [
        pytest.param("#ticks", None, id="none"),
        pytest.param("#ticks?tick=x", None, id="no-number"),
        pytest.param("#chat?tick=5", None, id="another-view"),
        pytest.param("#ticks?tick=5&n=99999&axis=sideways", [None, 5, 8192, "ticks", None], id="bounded"),
        pytest.param("#ticks?engine=a", ["a", None, 120, "ticks", None], id="an-engine-now"),
        pytest.param("#ticks?tick=5&n=60&axis=time", [None, 5, 60, "ticks", None], id="time-without-any"),
        pytest.param("#ticks?tick=5&axis=time&from=9&to=2", [None, 5, 120, "ticks", None], id="backwards"),
        pytest.param(
            "#ticks?engine=a&tick=5&axis=time&from=1&to=2&request=r", ["a", 5, 120, "time", "r"], id="all"
        ),
    ],
)
def test_a_link_is_read_with_care(of, hash_, asked):
    ask = """({ parse }, hash) => {
        const asked = parse(hash);
        return asked && [asked.engine, asked.tick, asked.n, asked.axis, asked.request];
    }"""
    assert of("ticks/link.js", ask, hash_) == asked


OPEN = """async ({ hashOf, link, obey, parse }, [hash, packet]) => {
    const { feed, merge } = await import("/ui/feed/feed.js");
    const { goLive, isLive, shownOf, view, windowOf } = await import("/ui/plots/window.js");
    const { fetch } = window;
    let nAsked = 0; // what the engine remembers beyond what the page has: nothing
    window.fetch = async () => ((nAsked += 1), new Response(JSON.stringify(packet)));
    try {
        feed.set({ engines: ["0"], engine: null });
        merge(packet);
        const { history } = feed.get();
        const opened = async (hash) => {
            goLive();
            link.set({ target: parse(hash), problem: null });
            await obey();
            return hashOf(history);
        };
        const first = await opened(hash);
        const { lo, hi, ticks } = windowOf(history);
        const shown = shownOf(history, view.get()).tick_id;
        const at = isLive() ? null : [shown, ticks.length, view.get().request, ticks.at(-1)?.tick_id];
        const found = { problem: link.get().problem, at, nAsked, lo, hi, n: ticks.length, hash: first };
        return { ...found, again: await opened(first) };
    } finally {
        window.fetch = fetch;
    }
}"""


@pytest.mark.parametrize(
    ("hash_", "problem", "at"),
    [
        pytest.param("tick=250&n=40&request=r1", None, [250, 40, "r1", 270], id="known"),
        pytest.param("tick=250&n=40&end=255", None, [250, 40, None, 255], id="with-its-end"),
        pytest.param(
            "engine=0&run=01234567&tick=250&axis=time&from=4.81&to=5.41",
            None,
            [250, 31, None, 270],
            id="in-time",
        ),
        pytest.param("tick=250&n=40&axis=time", None, [250, 40, None, 270], id="in-time-without-one"),
        pytest.param("engine=0&run=76543210&tick=250", "restarted since", None, id="another-run"),
        pytest.param("tick=5", "too old. The engine remembers its ticks from 100 on", None, id="too-old"),
        pytest.param("tick=900", "has not happened yet. The newest is 399", None, id="to-come"),
        pytest.param("engine=b&tick=250", "no engine b", None, id="no-such-engine"),
    ],
)
def test_a_link_opens_its_moment_or_says_why_not(of, hash_, problem, at):
    known = packet([tick(i) for i in range(100, 400)], [request()])
    known["engine"] = ENGINE | {"incarnation_id": "01234567 of " + hash_}
    found = of("ticks/link.js", OPEN, ["#ticks?" + hash_, known])
    assert (problem or "") in (found["problem"] or "")
    assert bool(found["problem"]) == bool(problem)
    assert found["at"] == at
    assert found["nAsked"] >= (hash_ == "tick=5"), "the engine is asked before that is said"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        pytest.param("tick=3&axis=time&from=0.25&to=0.75", [0.25, 0.75, 6], id="as-it-was"),
        pytest.param("tick=7&axis=time&from=0.8&to=30.5", [0.8, 30.5, 0], id="no-tick-in-it"),
        pytest.param("tick=7&axis=time&from=0.7&to=0.700001", [0.695001, 0.700001, 2], id="too-narrow"),
        pytest.param("tick=7&axis=time&from=-9999999999&to=1", [1 - 30 * 86400, 1, 8], id="endless"),
    ],
)
def test_a_link_in_time_keeps_its_window_to_the_microsecond(of, query, shown):
    known = packet([tick(i, 0.1 * i, total_s=0.1) for i in range(8)])
    known["engine"] = ENGINE | {"incarnation_id": "89abcdef of " + query}
    found = of("ticks/link.js", OPEN, ["#ticks?" + query, known])
    assert [found["lo"], found["hi"], found["n"]] == pytest.approx(shown)
    assert found["again"] == found["hash"], "what it opens has that link"


def test_requests_are_found_by_any_words_and_sorted_with_gaps_last(of):
    ask = """({ matching, sorted }, [requests, search, by, down]) =>
        sorted(matching(requests, search), by, down, 9).map((request) => request.request_id)"""
    requests = [
        request("chat-a", tenant="red", model="tiny", state="generating", ended_s=None, n_output=7),
        request("chat-b", tenant="blue", error="PromptTooLongError", finish_reason=None, first_token_s=None),
        request("cmpl-c", tenant="red", model="poet", slot_id=0, first_token_s=0.1, ended_s=3.0),
    ]
    asked = {
        ("", None, False): ["chat-a", "cmpl-c", "chat-b"],  # inside, then the latest to end
        ("chat", None, False): ["chat-a", "chat-b"],
        ("RED chat", None, False): ["chat-a"],
        ("too long", None, False): ["chat-b"],
        ("slot0", None, False): ["cmpl-c"],
        ("poet", None, False): ["cmpl-c"],
        ("", "model", False): ["cmpl-c", "chat-a", "chat-b"],
        ("nobody", None, False): [],
        ("", "TTFT", True): ["chat-a", "cmpl-c", "chat-b"],
        ("", "TTFT", False): ["cmpl-c", "chat-a", "chat-b"],
        ("", "output", True): ["chat-a", "chat-b", "cmpl-c"],
    }
    for (search, by, down), found in asked.items():
        assert of("record/table.js", ask, [requests, search, by, down]) == found


def recorded(told):
    ticks = [tick(0, 0.1), tick(1, 0.2, chunks=[(2, 0, 63)]), tick(2, 0.3, decodes=(0, 2))]
    late = request(
        "late", arrived_s=1.5, assigned_s=None, first_token_s=None, ended_s=1.9, slot_id=None, stays=[]
    )
    ask = """({ recordingOf, traceOf }, history) => {
        const recording = recordingOf(history, history.ticks);
        return [recording, traceOf(recording)];
    }"""
    return told("record/download.js", ask, packet(ticks, [request(stays=[[2, 0.15, 1.0]]), late]))


def test_a_saved_recording_is_what_the_server_would_have_told(told):
    recording, _ = recorded(told)
    read = Recording()
    read.add(recording)
    (story,) = read.stories.values()
    assert sorted(story.ticks) == [0, 1, 2]
    assert sorted(story.requests) == ["r1"], "requests of that time"
    assert story.engine == ENGINE
    assert timeline_of(story).rows, "`cobali trace --from` draws it"


def test_a_saved_trace_nests_what_happened_in_ticks_and_slots(told):
    _, trace = recorded(told)
    events = trace["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault(rows[event["tid"]], []).append(
                (event["name"], event["ts"], event["ts"] + event["dur"])
            )
    assert [name for name, *_ in slices["tick"][:5]] == ["tick 0", "plan", "forward", "sample", "publish"]
    assert [name for name, *_ in slices["forward pass"]] == ["2 decode", "2 decode + 63 prefill", "2 decode"]
    assert [name for name, *_ in slices["slot 2"]] == ["r1", "prompt 0..63", "decode"]
    for row in slices.values():
        open_until = []
        for _, start, end in sorted(row, key=lambda one: (one[1], -one[2])):
            while open_until and open_until[-1] <= start + 0.002:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.002, "one lies within the other, or behind it"
            open_until.append(end)
    assert slices["tick"][0][1] == pytest.approx((1000.0 - 2.0 + 0.1) * 1e6), "on the wall clock"
    tokens = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "tokens per tick"]
    assert tokens == [{"decode": 2, "prefill": 0}, {"decode": 2, "prefill": 63}, {"decode": 2, "prefill": 0}]
    assert [e["ph"] for e in events if e.get("cat") == "queue"] == ["b", "e"]
