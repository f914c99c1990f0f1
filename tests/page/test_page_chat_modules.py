"""What the chat computes without drawing: trees of messages, what is sent of them, files, places in line."""

import pytest

pytest.importorskip("playwright")

TREE = """(m) => {
    const made = {};
    let whole = m.newConversation({}, "", 0);
    const add = (name, parent, message, atMs) => {
        whole = m.withMessage(whole, made[parent] ?? null, message, atMs);
        made[name] = whole.head;
    };
    const says = (text) => ({ role: "assistant", text, reasoning: "", calls: [] });
    add("q", null, { role: "user", text: "q" }, 1);
    add("a1", "q", says("a1"), 2);
    add("a2", "q", says("a2"), 3);
    add("q2", "a1", { role: "user", text: "q2" }, 4);
    add("b", "q2", says("b"), 5);
    const shown = (one) => m.pathOf(one).map(({ text }) => text).join(" ");
    const at = (name) => m.messageOf(whole, made[name]);
    return { m, whole, made, shown, at };
}"""


def test_a_branch_is_looked_at_where_it_was_written_last(of):
    ask = f"""(m) => {{
        const {{ whole, made, shown, at }} = ({TREE})(m);
        return [shown(whole), shown(m.lookAt(whole, made.a2)), shown(m.lookAt(whole, made.a1)),
            shown(m.lookAt(whole, made.q)),
            m.siblingsOf(whole, at("a2")).map(({{ text }}) => text), whole.title];
    }}"""
    assert of("request/conversations.js", ask) == [
        "q a1 q2 b",
        "q a2",
        "q a1 q2 b",
        "q a1 q2 b",
        ["a1", "a2"],
        "q",
    ]


def test_what_two_tabs_wrote_is_united(of):
    ask = f"""(m) => {{
        const {{ whole, made, shown }} = ({TREE})(m);
        const one = m.withTitle(m.withMessage(whole, made.b, {{ role: "user", text: "one" }}, 6), "Named", 8);
        const other = m.withMessage(m.withChange(whole, made.b, {{ text: "longer" }}, 7),
            made.b, {{ role: "user", text: "other" }}, 9);
        const both = m.united(one, other);
        return [shown(both), both.title, both.messages.map(({{ text }}) => text), both.changedMs,
            m.sameAs(both, m.united(both, one)), m.sameAs(both, one)];
    }}"""
    texts = ["q", "a1", "a2", "q2", "longer", "one", "other"]
    assert of("request/conversations.js", ask) == ["q a1 q2 longer other", "Named", texts, 9, True, False]


def test_calls_are_sent_with_their_results_and_questions_without_an_answer_are_not(of):
    ask = """({ apiMessages }) => apiMessages([
        { role: "user", text: "never answered" },
        { role: "assistant", text: "", reasoning: "", calls: [
            { id: "x", name: "f", args: "{}", result: null }] },
        { role: "user", text: "sums", images: [{ url: "data:image/png;base64,AA" }] },
        { role: "assistant", text: "", reasoning: "hm", calls: [
            { id: "a", name: "add", args: "{}", result: { content: "3" } },
            { id: "b", name: "add", args: "[", result: { error: "no JSON" } }] },
        { role: "user", text: "last" },
    ])"""

    def call(id_, arguments):
        return {"id": id_, "type": "function", "function": {"name": "add", "arguments": arguments}}

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert of("request/conversations.js", ask) == [
        {"role": "user", "content": [{"type": "text", "text": "sums"}, image]},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [call("a", "{}"), call("b", "[")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no JSON"},
        {"role": "user", "content": "last"},
    ]


def test_conversations_are_grouped_by_day(of):
    ask = """({ byDay }) => {
        const now = new Date(2026, 10, 22, 1).getTime();
        const hours = [0.5, 2, 24 * 3, 24 * 20, 24 * 200];
        const ones = hours.map((ago) => ({ id: `${ago}`, changedMs: now - ago * 3600e3 }));
        return byDay(ones.reverse(), now).map(([word, some]) => [word, some.map(({ id }) => id)]);
    }"""
    assert of("request/conversations.js", ask) == [
        ["Today", ["0.5"]],
        ["Yesterday", ["2"]],
        ["Last 7 days", ["72"]],
        ["Last 30 days", ["480"]],
        ["Older", ["4800"]],
    ]


READ = """({ fromJson }, text) => {
    try { return fromJson(text).length; } catch (error) { return error.message; }
}"""
WHOLE = (
    '{"format": "cobali_ray conversations", "version": 1, "conversations": [{"id": "c", "title": "t", '
    '"titledMs": 0, "createdMs": 0, "changedMs": 0, "settings": {}, "model": "", "head": "m", "messages": '
    '[{"id": "m", "parent": null, "role": "user", "text": "x", "atMs": 0, "changedMs": 0}]}]}'
)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(None, 1, id="whole"),
        pytest.param(("{", "", 1), "This is not JSON", id="no-json"),
        pytest.param(("cobali_ray", "other"), "This file holds no conversations", id="format"),
        pytest.param(('"version": 1', '"version": 2'), "Version 2 of the format is not", id="version"),
        pytest.param(('"title": "t"', '"title": 3'), "Conversation 1: title is missing", id="field"),
        pytest.param(("user", "system"), "message 1: role must be user or assistant", id="role"),
        pytest.param(('"parent": null', '"parent": "n"'), "parent is not an earlier message", id="orphan"),
        pytest.param(('"parent": null', '"parent": "m"'), "parent is not an earlier message", id="circle"),
        pytest.param(('"head": "m"', '"head": "n"'), "head is not one of its messages", id="head"),
        pytest.param(('"role": "user"', '"role": "assistant"'), "message 1: status is missing", id="answer"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(of, change, told):
    found = of("chat/portable.js", READ, WHOLE.replace(*change) if change else WHOLE)
    assert found == told if isinstance(told, int) else told in found


STAND = """({ standing }, requests) =>
    standing({ requests: new Map(requests.map((r, i) => [i, r])) }, "mine")"""


def request(arrived_s, state="queued", sent_as="mine", **more):
    return {
        "state": state,
        "x_request_id": sent_as,
        "arrived_s": arrived_s,
        "first_token_s": None,
        "n_computed": 0,
        "n_cached": 0,
    } | more


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        pytest.param([], "waiting for the first token …", id="unknown"),
        pytest.param([request(98.1)], "waiting for a slot, next in line …", id="next"),
        pytest.param([request(98.1, sent_as="theirs")], "waiting for the first token …", id="of-another"),
        pytest.param(
            [request(95, sent_as="a"), request(96, sent_as="b"), request(98.1)],
            "waiting for a slot, 2 ahead …",
            id="line",
        ),
        pytest.param(
            [request(98.1, "prefilling", sent_as="theirs", n_prompt=9), request(98.1)],
            "waiting for a slot, next in line …",
            id="at-the-same-moment",
        ),
        pytest.param([request(98.1, "ended"), request(99)], "waiting for a slot, next in line …", id="again"),
        pytest.param(
            [request(98, "prefilling", n_computed=1024, n_prompt=3000)],
            "reading the prompt: 1,024 of 3,000 tokens …",
            id="reading",
        ),
        pytest.param([request(98, "prefilling", n_prompt=9)], "reading the prompt …", id="begins"),
    ],
)
def test_a_request_without_a_token_is_told_by_its_id(of, requests, told):
    assert of("chat/waiting.js", STAND, requests) == told


def served(name, root="m", parent=None):
    return {"id": name, "root": root, "parent": parent}


@pytest.mark.parametrize(
    ("all_", "n"),
    [
        pytest.param([], 0, id="none-yet"),
        pytest.param([served("m"), served("alias")], 1, id="names-of-one"),
        pytest.param([served("m"), served("poet", parent="m")], 2, id="an-adapter"),
        pytest.param([served("m"), served("o", "o")], 2, id="two"),
    ],
)
def test_models_are_counted_by_what_they_are(of, all_, n):
    ask = "({ models, nServed }, all) => (models.set({ all }), nServed())"
    assert of("request/models.js", ask, all_) == n
