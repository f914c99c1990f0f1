"""Modules of the page that compute and do not draw, imported by a browser as they are."""

import ast
import math
import random

import pytest

pytest.importorskip("playwright")

EVENTS = ": hello\n\nevent: gone\ndata: {}\n\ndata: a\ndata: b\n\nid: 4\ndata: é → ✓\r\n\r\ndata\n\n"


def test_events_are_the_same_wherever_the_wire_cuts_them(of):
    cut = """({ makeParser }, wires) => wires.map((pieces) => {
        const parse = makeParser();
        return pieces.flatMap(parse);
    })"""
    pieces = [[EVENTS[:i], EVENTS[i:]] for i in range(len(EVENTS))] + [list(EVENTS)]
    whole = [
        {"event": "gone", "data": "{}", "id": None},
        {"event": "message", "data": "a\nb", "id": None},
        {"event": "message", "data": "é → ✓", "id": "4"},
        {"event": "message", "data": "", "id": None},
    ]
    for i, found in enumerate(of("parts/sse.js", cut, pieces)):
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
    (n, *quantiles), later, much_later, none = of("feed/quantiles.js", ask, values)
    assert (n, later, much_later, none) == (2000, 1100, 0, None)
    for share, found in zip((0.5, 0.95, 0.99), quantiles, strict=True):
        assert math.isclose(found, values[math.ceil(2000 * share) - 1], rel_tol=0.02)


def test_samples_of_a_minute_are_kept_and_no_more_though_nobody_asks(of):
    ask = """({ LastMinute }, n) => {
        const minute = new LastMinute();
        for (let second = 0; second < n; second += 1) minute.add(second + 0.5, [0.01, 0.02]);
        const size = minute.bySecond.size;
        minute.add(3, [0.01]);
        return [size, minute.summary(n - 0.5).n, minute.bySecond.size];
    }"""
    assert of("feed/quantiles.js", ask, 600) == [60, 120, 60]


ASK = r"""async ({ ask, paceOf, tokensOf }, chunks) => {
    const { fetch } = window;
    const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const pull = async (body) => {
        for (const chunk of chunks) {
            if (typeof chunk === "number") await wait(chunk);
            else body.enqueue(new TextEncoder().encode(`data: ${JSON.stringify({ id: "r", ...chunk })}\n\n`));
        }
        body.enqueue(new TextEncoder().encode("data: [DONE]\n\n"));
        body.close();
    };
    window.fetch = async () => new Response(new ReadableStream({ start: (body) => void pull(body) }));
    const [answer] = ask({}).answers;
    window.fetch = fetch;
    while (answer.get().usage === null) await wait(10);
    return { ...answer.get(), nTokens: tokensOf(answer.get()), pace: paceOf(answer.get()) };
}"""
"""Ask for chunks, and pauses in milliseconds; return the answer they made."""


def said(**delta):
    return {"choices": [{"index": 0, "delta": delta}]}


def ended(**usage):
    return [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]


def test_the_end_of_an_answer_is_when_its_last_token_came(of):
    chunks = [said(content="a"), said(content="bc"), 400, *ended(completion_tokens=9)]
    answer = of("request/chat.js", ASK, chunks)
    assert answer["nTokens"] == 9
    assert answer["pace"]["from"] == "page"
    assert 0 < answer["pace"]["perSecond"] < 8 / 0.39, "the end token took its time"


@pytest.mark.parametrize(
    ("n", "seconds", "timings", "pace"),
    [
        pytest.param(9, 4.0, None, {"perSecond": 2, "from": "page"}, id="as-it-came"),
        pytest.param(7, 4.0, None, None, id="few-tokens"),
        pytest.param(900, 0.1, None, None, id="a-moment"),
        pytest.param(
            900, 4.0, {"tokens_per_second": 41.5}, {"perSecond": 41.5, "from": "server"}, id="served"
        ),
        pytest.param(900, 4.0, {"tokens_per_second": None}, None, id="the-server-has-none"),
    ],
)
def test_a_pace_is_the_servers_and_never_a_guess_from_few_tokens_or_a_moment(of, n, seconds, timings, pace):
    ask = """({ paceOf }, { n, seconds, timings }) => paceOf({
        status: "done", sentS: 0, ttftS: 0.5, lastS: 0.5 + seconds, nAnswers: 1, nDeltas: 1,
        usage: { completion_tokens: n }, timings,
    })"""
    assert of("request/chat.js", ask, {"n": n, "seconds": seconds, "timings": timings}) == pace


def test_until_an_answer_ended_its_pace_is_that_of_the_feed(of):
    answer = '{ status: "streaming", ttftS: 0.1, nDeltas: 500, timings: null }'
    ask = f"({{ paceOf }}, told) => paceOf({answer}, told, 12)"
    told = {"state": "generating", "n_output": 41, "first_token_s": 10, "ended_s": None}
    assert of("request/chat.js", ask, told) == {"perSecond": 20, "from": "feed"}
    assert of("request/chat.js", ask, told | {"first_token_s": 11.9}) is None
    assert of("request/chat.js", ask, None) is None


def test_reasoning_is_output_like_any_other_and_its_time_is_known(of):
    thoughts = [said(reasoning_content="hm"), 150, said(reasoning_content=", yes")]
    answer = of("request/chat.js", ASK, [*thoughts, 150, said(content="a"), 400, *ended(completion_tokens=9)])
    assert (answer["reasoning"], answer["text"], answer["nDeltas"]) == ("hm, yes", "a", 3)
    total = answer["lastS"] - answer["sentS"]
    assert answer["reasonedS"] > 0.29, "up to the answer"
    assert answer["ttftS"] + answer["reasonedS"] < total - 0.39, "the first token is one of the reasoning"
    assert 0 < answer["pace"]["perSecond"] < 8 / 0.69


def test_pieces_of_tool_calls_are_put_together(of):
    def piece(index, id_=None, **function):
        return {"index": index, "function": function} | ({"id": id_} if id_ else {})

    chunks = [
        said(tool_calls=[piece(0, "call00001", name="add", arguments="")]),
        said(tool_calls=[piece(0, arguments='{"a":'), piece(0, arguments=" 1}")]),
        said(tool_calls=[piece(1, "call00002", name="now", arguments="{}")]),
    ]
    answer = of("request/chat.js", ASK, [*chunks, *ended(completion_tokens=9)])
    assert answer["calls"] == [
        {"id": "call00001", "name": "add", "args": '{"a": 1}', "result": None},
        {"id": "call00002", "name": "now", "args": "{}", "result": None},
    ]
    assert answer["ttftS"] is not None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"a": [1, 2.5, None, True, {"b": []}], "c": 'it\'s "x" \\ \n é \U0001f600'}, id="all"),
        pytest.param({}, id="empty"),
        pytest.param([["x"], {"one": 1, "two": 2, "three": False}], id="nested"),
    ],
)
def test_python_literals_mean_what_the_json_meant(of, value):
    assert (
        ast.literal_eval(of("request/snippets.js", "({ literal }, value) => literal(value)", value)) == value
    )


def test_only_what_is_filled_in_is_sent(of):
    settings = {"temperature": "0", "top_p": "", "top_k": "3.5", "seed": "7", "stop": "a\n\nb", "system": " "}
    build = "({ bodyOf }, settings) => bodyOf(settings, 'm', [], 'hi')"
    assert of("request/params.js", build, settings) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "seed": 7,
        "stop": ["a", "b"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


READ = r"""async ({ makeBlocks }, nSections) => {
    const { Lexer } = await import("/ui/vendor/marked-18.2.1.js");
    const { lex } = Lexer.prototype;
    let nRead = 0;
    Lexer.prototype.lex = function (text) {
        nRead += text.length;
        return lex.call(this, text);
    };
    const code = "```python\nx = 1\n```\n\n";
    const section = `## Head\n\nSome **words** of it.\n\n${code}| a | b |\n|---|---|\n| 1 | 2 |\n\n`;
    const blocks = makeBlocks();
    const whole = section.repeat(nSections);
    for (let n = 3; n < whole.length; n += 3) blocks(whole.slice(0, n), true, null);
    Lexer.prototype.lex = lex;
    return nRead;
}"""
"""Draw an answer that grows by three characters at a time; return how many were read as Markdown."""


def test_of_a_growing_answer_only_the_end_is_read_again(of):
    some, more = of("answer/blocks.js", READ, 10), of("answer/blocks.js", READ, 40)
    assert more < 4.5 * some, "four times as long is four times as much, and not sixteen"
