"""What the page knows of ticks and requests: packets late, lost, overtaken; and what is kept to look at."""

import packets
import pytest

pytest.importorskip("playwright")

TWO_SLOTS = packets.ENGINE | {"incarnation_id": "one", "n_slots": 2, "token_budget": 8, "itl_target_s": None}
PACKET = packets.packet([]) | {"engine": TWO_SLOTS, "now_s": 10.0, "next": 3}


def tick(number, started_s, spans=()):
    more = {"total_s": 0.5, "n_sampled": 1, "gaps_s": [0.1]}
    return packets.tick(number, started_s, decodes=(), spans=spans, **more)


def request(name, stays, state="generating"):
    moments = {"assigned_s": stays[0][1], "first_token_s": None, "ended_s": None}
    return packets.request(name, state=state, n_prompt=4, stays=stays, **moments)


def test_where_cached_tokens_came_from_is_said_in_words(of):
    ask = "({ cachedFrom }, requests) => requests.map(cachedFrom)"
    asked = [{"n_cached": 5, "cached_from": tier} for tier in ("slot", "copy", "host", "moon")]
    said = ["its own slot", "another slot", "host memory", "moon", ""]
    assert of("feed/lives.js", ask, [*asked, {"n_cached": 0, "cached_from": "none"}]) == said


def test_history_joins_packets_and_knows_who_held_a_slot(of):
    ask = """({ History }, packets) => {
        const history = new History(packets[0]);
        for (const packet of packets.slice(1)) history.add(packet, 0);
        const holder = (slot, tick) => history.holder(slot, tick)?.request_id ?? null;
        const holders = history.ticks.map((tick) => [0, 1].map((slot) => holder(slot, tick)));
        const states = [...history.requests.values()].map(({ request_id: id, state }) => [id, state]);
        return { ids: history.ticks.map((tick) => tick.tick_id), holders, states, next: history.next };
    }"""
    packets = [
        PACKET
        | {"ticks": [tick(2, 2.0), tick(3, 3.0)], "next": 4, "requests": [request("a", [[0, 1.9, None]])]},
        PACKET  # a was preempted, came back elsewhere; b took its slot
        | {
            "ticks": [tick(3, 3.0), tick(4, 4.0), tick(5, 5.0)],
            "next": 6,
            "requests": [request("a", [[0, 1.9, 3.9], [1, 4.9, None]]), request("b", [[0, 3.95, None]])],
        },
        PACKET | {"ticks": [tick(1, 1.0)], "next": 6, "requests": [request("b", [[0, 3.95, None]])]},
    ]
    assert of("feed/history.js", ask, packets) == {
        "ids": [1, 2, 3, 4, 5],
        "holders": [[None, None], ["a", None], ["a", None], ["b", None], ["b", "a"]],
        "states": [["a", "ended"], ["b", "generating"]],
        "next": 6,
    }


def ended(name, arrived_s, ended_s, **more):
    stays = [[0, arrived_s, ended_s]]
    moments = {"arrived_s": arrived_s, "first_token_s": arrived_s + 0.5, "ended_s": ended_s}
    return request(name, stays, "ended") | moments | more


def ticks(first, before):
    return [tick(i, float(i)) for i in range(first, before)]


ASK = """async ({ History }, packets) => {
    const history = new History(packets[0]);
    for (const packet of packets.slice(1)) history.add(packet, 0);
    const ids = history.ticks.map((tick) => tick.tick_id);
    const lives = Object.fromEntries(
        [...history.requests.values()].map((r) => [r.request_id, [r.state, r.ended_s, r.unseen ?? false]])
    );
    return WHAT;
}"""


@pytest.fixture
def tell(of):
    """Tell packets to a history and return what is asked of it."""
    return lambda packets, what: of("feed/history.js", ASK.replace("WHAT", what), packets)


def test_ticks_that_were_missing_fill_their_hole(tell):
    packets = [
        PACKET | {"ticks": ticks(0, 3)},
        PACKET | {"now_s": 20.0, "next": 12, "ticks": ticks(9, 12)},
        PACKET | {"now_s": 21.0, "next": 13, "ticks": ticks(2, 13)},
    ]
    first, second, third = (tell(packets[:n], "ids") for n in (1, 2, 3))
    assert first == [0, 1, 2]
    assert second == [0, 1, 2, 9, 10, 11]
    assert third == list(range(13)), "in order, none twice"


def test_what_is_known_without_a_gap_is_what_the_numbers_are_over(tell):
    ask = """await import("/ui/ticks/summary.js").then(({ summaryOf }) => {
        const { ratesS, quantilesS, itl, ttft } = summaryOf(history, 105);
        return [ratesS, quantilesS, itl.n, ttft.n];
    })"""
    lost = [ended(f"r{i}", i, i + 1.0) for i in (95, 101)]
    packets = [
        PACKET | {"now_s": 100.0, "ticks": ticks(0, 100), "requests": lost[:1]},
        PACKET | {"now_s": 105.0, "ticks": ticks(102, 105), "requests": lost[1:]},
        PACKET | {"now_s": 105.0, "ticks": ticks(98, 105)},
    ]
    whole, holed, filled = (tell(packets[:n], ask) for n in (1, 2, 3))
    assert whole == [5, 60, 54, 1]
    assert holed == [3, 3, 3, 0], "only what came after the gap"
    assert filled == [5, 60, 59, 2]


def test_a_packet_that_was_overtaken_changes_nothing_that_is_known_better(tell):
    packets = [
        PACKET | {"ticks": ticks(5, 7), "next": 7, "requests": [request("a", [[0, 1.0, None]])]},
        PACKET
        | {
            "now_s": 20.0,
            "next": 9,
            "ticks": ticks(7, 9),
            "requests": [ended("a", 1.0, 19.0), request("b", [[0, 19.5, None]])],
        },
        PACKET
        | {
            "now_s": 15.0,
            "next": 8,
            "ticks": ticks(3, 8),
            "requests": [ended("c", 0.5, 2.0), request("a", [[0, 1.0, None]])],
        },
    ]
    known, found, now_s, following = tell(packets, "[lives, ids, history.nowS, history.next]")
    assert known == {
        "a": ["ended", 19.0, False],
        "b": ["generating", None, False],
        "c": ["ended", 2.0, False],
    }
    assert (found, now_s, following) == ([3, 4, 5, 6, 7, 8], 20.0, 9)


def test_an_end_that_nobody_saw_is_no_end_at_the_moment_of_return(tell):
    packets = [
        PACKET | {"requests": [request("a", [[0, 1.0, None]])]},
        PACKET | {"now_s": 90.0},
        PACKET | {"now_s": 91.0, "requests": [ended("a", 1.0, 30.0)]},
    ]
    ask = "[lives, history.holder(0, { started_s: 50, total_s: 1 })]"
    presumed, holder = tell(packets[:2], ask)
    told = tell(packets, "lives")
    assert presumed == {"a": ["ended", 10.0, True]}, "when it was heard of last"
    assert holder is None, "its slot is not thought to be held"
    assert told == {"a": ["ended", 30.0, False]}


def test_who_ended_first_is_forgotten_first_and_no_first_token_of_the_minute(tell):
    late = [ended(f"late{i}", 20.0, 30.0 + i / 100) for i in range(800)]
    early = [ended(f"early{i}", 5.0, 10.0 + i / 100) for i in range(400)]
    packets = [PACKET | {"now_s": 60.0, "requests": late}, PACKET | {"now_s": 61.0, "requests": early}]
    known, n_first_tokens = tell(packets, "[Object.keys(lives), history.lives.ttfts(60, 0).length]")
    assert sorted(known) == sorted(r["request_id"] for r in late + early[200:])
    assert n_first_tokens == 1200


LOOK = """async ({ view, pick, goLive, shownOf, windowOf }, { packet, more }) => {
    const { feed, merge } = await import("/ui/feed/feed.js");
    const { fetch } = window;
    window.fetch = () => new Promise(() => {}); // what a pause asks for is on its way for ever
    const { soon } = await import("/ui/parts/store.js");
    const frames = () => new Promise((resolve) => soon(() => soon(resolve)));
    try {
        merge(packet);
        const { history } = feed.get();
        pick(history, 150);
        await frames();
        for (const one of more) merge(one);
        const seen = windowOf(history).ticks.length;
        const pinned = shownOf(history, view.get())?.tick_id ?? null;
        const found = [seen, view.get().span.ticks, pinned, history.ticks.length, history.lastId];
        history.ticks.splice(0, 200);
        const gone = shownOf(history, view.get());
        goLive();
        return [found, gone, shownOf(history, view.get()).tick_id];
    } finally {
        window.fetch = fetch;
    }
}"""


def test_a_pause_keeps_what_is_looked_at(of):
    packet = PACKET | {
        "engine": PACKET["engine"] | {"incarnation_id": "paused"},
        "ticks": ticks(0, 200),
        "next": 200,
    }
    more = [packet | {"now_s": 10.0 + n, "ticks": ticks(n * 1000 + 200, n * 1000 + 1200)} for n in range(10)]
    found, gone, newest = of("plots/window.js", LOOK, {"packet": packet, "more": more})
    seen, size, pinned, n_ticks, last = found
    assert (seen, pinned, last) == (size, 150, 10_199)
    assert n_ticks <= 8192, "with a bound"
    assert gone is None, "another tick is not taken for a pinned one"
    assert newest == 10_199


def test_a_slot_that_is_held_and_not_computed_waits(of):
    ask = """async ({ piecesOf }, packet) => {
        const { History } = await import("/ui/feed/history.js");
        const history = new History(packet);
        const pieces = piecesOf(history, history.ticks);
        return pieces.map(({ slot, id, kind, first, last }) => [slot, id, kind, first.tick_id, last.tick_id]);
    }"""
    decodes, reads = [0, 4, 1, 1], [1, 0, 2, 0]
    rows = [[decodes], [decodes], [decodes, reads], [decodes], [], [decodes]]
    packet = PACKET | {
        "ticks": [tick(i, float(i), spans) for i, spans in enumerate(rows)],
        "requests": [request("a", [[0, 0.0, None]]), request("b", [[1, 1.0, 4.2]])],
    }
    assert of("plots/pieces.js", ask, packet) == [
        [0, "a", 1, 0, 3],
        [1, "b", -1, 1, 1],
        [1, "b", 0, 2, 2],
        [1, "b", -1, 3, 3],
        [0, "a", -1, 4, 4],
        [0, "a", 1, 5, 5],
    ]


def test_ttft_begins_where_the_client_was_heard(tell):
    one = ended("a", 20.0, 30.0)
    packets = [PACKET | {"now_s": 60.0, "requests": [one, one | {"request_id": "b", "received_s": 18.0}]}]
    assert tell(packets, "history.lives.ttfts(60, 0)") == [0.5, 2.5]
