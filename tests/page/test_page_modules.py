"""Modules of the page that compute and do not draw, imported by a browser as they are."""

import ast
import math
import random

import pytest

pytest.importorskip("playwright")

EVENTS = ": hello\n\nevent: gone\ndata: {}\n\ndata: a\ndata: b\n\nid: 4\ndata: é → ✓\r\n\r\ndata\n\n"


@pytest.fixture(scope="module")
def of(browser, site):
    """Evaluate a function of a module's exports, and an argument."""
    page = browser.new_page()
    page.goto(f"{site.url}/ui/icon.svg")  # of the same origin, and with nothing going on

    def evaluate(module, function, arg=None):
        load = "([url, arg]) => import(url).then((module) => (%s)(module, arg))"
        return page.evaluate(load % function, [f"{site.url}/ui/{module}", arg])

    yield evaluate
    page.close()


def test_events_are_the_same_wherever_the_wire_cuts_them(of):
    cut = """({ makeParser }, wires) => wires.map((pieces) => {
        const parse = makeParser();
        return pieces.flatMap(parse);
    })"""
    pieces = [[EVENTS[:i], EVENTS[i:]] for i in range(len(EVENTS))] + [list(EVENTS)]
    whole = [
        {"event": "gone", "data": "{}"},
        {"event": "message", "data": "a\nb"},
        {"event": "message", "data": "é → ✓"},
        {"event": "message", "data": ""},
    ]
    for i, found in enumerate(of("sse.js", cut, pieces)):
        assert found == whole, f"cut at {i}"


def test_quantiles_are_right_within_a_bucket_and_forget_after_a_minute(of):
    rng = random.Random(7)
    values = sorted(rng.lognormvariate(-4, 1) for _ in range(2000))
    ask = """({ LastMinute }, values) => {
        const minute = new LastMinute();
        minute.add(10.5, values.slice(0, 900));
        minute.add(30, values.slice(900));
        const before = minute.summary(60);
        const found = [before.n, ...[0.5, 0.95, 0.99].map(before.at)];
        return [found, minute.summary(70.6).n, minute.summary(200).n, minute.summary(200).at(0.5)];
    }"""
    (n, *quantiles), later, much_later, none = of("quantiles.js", ask, values)
    assert (n, later, much_later, none) == (2000, 1100, 0, None)
    for share, found in zip((0.5, 0.95, 0.99), quantiles, strict=True):
        assert math.isclose(found, values[math.ceil(2000 * share) - 1], rel_tol=0.02)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"a": [1, 2.5, None, True, {"b": []}], "c": 'it\'s "x" \\ \n é \U0001f600'}, id="all"),
        pytest.param({}, id="empty"),
        pytest.param([["x"], {"one": 1, "two": 2, "three": False}], id="nested"),
    ],
)
def test_python_literals_mean_what_the_json_meant(of, value):
    assert ast.literal_eval(of("snippets.js", "({ literal }, value) => literal(value)", value)) == value


def test_only_what_is_filled_in_is_sent(of):
    settings = {"temperature": "0", "top_p": "", "top_k": "3.5", "seed": "7", "stop": "a\n\nb", "system": " "}
    build = "({ bodyOf }, settings) => bodyOf(settings, 'm', [], 'hi')"
    assert of("params.js", build, settings) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "seed": 7,
        "stop": ["a", "b"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


PACKET = {
    "engine": {
        "id": "one",
        "n_slots": 2,
        "n_cells": 64,
        "token_budget": 8,
        "itl_target_s": None,
        "model": "m",
    },
    "now_s": 10.0,
    "unix_s": 1000.0,
    "next": 3,
    "ticks": [],
    "requests": [],
}


def tick(number, started_s, spans=()):
    return {"tick_id": number, "started_s": started_s, "total_s": 0.5, "gaps_s": [], "spans": spans}


def request(name, stays, state="generating"):
    moments = {"arrived_s": 0.0, "assigned_s": stays[0][1], "first_token_s": None, "ended_s": None}
    return {"request_id": name, "state": state, "n_prompt": 4, "n_cached": 0, "stays": stays, **moments}


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
    assert of("history.js", ask, packets) == {
        "ids": [1, 2, 3, 4, 5],
        "holders": [[None, None], ["a", None], ["a", None], ["b", None], ["b", "a"]],
        "states": [["a", "ended"], ["b", "generating"]],
        "next": 6,
    }
