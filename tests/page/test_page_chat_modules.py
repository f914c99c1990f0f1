"""What the chat computes without drawing: trees of messages, what is sent of them, files, places in line."""

import json

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


LATE = """(m) => {
    const whole = m.withMessage(m.newConversation({}, "", 0), null, { role: "user", text: "q" }, 100);
    return { m, whole, failed: m.withMessage(whole, whole.head, { role: "assistant", text: "failed" }, 50) };
}"""
"""A question and its failed answer, by a clock that is behind from then on."""


def test_a_clock_that_is_behind_neither_brings_back_what_was_replaced_nor_turns_the_order(of):
    ask = f"""(first) => {{
        const {{ m, whole, failed }} = ({LATE})(first);
        const again = m.united(failed, m.withChange(failed, failed.head, {{ text: "again" }}, 60));
        const earlier = failed.messages.with(1, {{ ...failed.messages[1], atMs: 50 }}); // by a page of before
        const texts = ({{ messages }}) => messages.map(({{ text }}) => text);
        const turned = m.united(whole, {{ ...failed, messages: earlier }});
        return [failed.messages[1].atMs, ...[again, turned].map(texts)];
    }}"""
    assert of("request/conversations.js", ask) == [101, ["q", "again"], ["q", "failed"]]


def test_a_name_that_was_cleared_stays_cleared(of):
    ask = f"""(m) => {{
        const named = m.withTitle(({TREE})(m).whole, "Named", 8);
        const cleared = m.withTitle(named, "", 9);
        return [cleared, m.united(named, cleared), m.united(cleared, m.withTitle(named, "Later", 10))]
            .map(({{ title }}) => title);
    }}"""
    assert of("request/conversations.js", ask) == ["q", "q", "Later"]


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


def test_odd_ids_of_a_file_are_replaced_and_what_names_them_too(of):
    ask = """({ fromJson }, text) => {
        const [{ id, head, messages: [first, second] }] = fromJson(text);
        const sane = [id, first.id].map((one) => /^\\w+$/.test(one));
        return [sane, first.parent, second.parent === first.id, second.id, head];
    }"""
    file = json.loads(WHOLE)
    [conversation] = file["conversations"]
    conversation |= {"id": "../pause?release=true&x=", "head": "sane"}
    [message] = conversation["messages"]
    conversation["messages"] = [message | {"id": "o d d"}, message | {"id": "sane", "parent": "o d d"}]
    assert of("chat/portable.js", ask, json.dumps(file)) == [[True, True], None, True, "sane", "sane"]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        pytest.param({}, "message 1: calls is missing or invalid", id="empty"),
        pytest.param({"content": None}, "message 1: calls is missing or invalid", id="null"),
        pytest.param({"error": "no"}, 1, id="error"),
        pytest.param({"content": ""}, 1, id="content"),
    ],
)
def test_a_result_of_a_call_in_a_file_has_a_text(of, result, told):
    file = json.loads(WHOLE)
    [message] = file["conversations"][0]["messages"]
    call = {"id": "a", "name": "f", "args": "{}", "result": result}
    answer = {
        "status": "done",
        "part": "calls",
        "reasoning": "",
        "reasonedS": 0,
        "calls": [call],
        "nAnswers": 1,
    }
    numbers = {"sentS": 0, "nDeltas": 1, "finishReason": "stop", "requestId": None}
    message |= {"role": "assistant"} | answer | numbers
    found = of("chat/portable.js", READ, json.dumps(file))
    assert found == told if isinstance(told, int) else told in found


def test_of_settings_in_a_file_those_are_taken_that_have_the_type_of_their_name(of):
    good = {"system": "Be brief.", "temperature": "0", "ignore_eos": True, "words": False}
    odd = {"stop": True, "seed": 3, "tools": True, "min_p": None}
    ask = "({ knownSettings }, settings) => knownSettings(settings)"
    assert of("chat/portable.js", ask, good | odd) == good
    assert of("chat/portable.js", ask, {"ignore_eos": "true", "words": ""}) == {}


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


SERVED = """async ({ onOthers, open, read, readAll }, arg) => {
    const { fetch } = window;
    const asked = [];
    const server = new Map(Object.entries({
        "v1/chats?after=0": { data: [{ id: "theirs", version: 1, summary: "{}" }] },
        "v1/chats/theirs": { version: 1, data: '{"id": "theirs"}' },
    }));
    window.fetch = async (url) => {
        const path = url.href.slice(location.origin.length + 1);
        asked.push(path);
        return Response.json(server.get(path) ?? { data: [] });
    };
    try {
        return await (WHAT)(asked);
    } finally {
        window.fetch = fetch;
    }
}"""
"""Ask for what is kept on a server that has one conversation."""


def test_an_id_leads_to_no_other_route(of):
    ask = "async (asked) => { await read('../pause?x=').catch(() => {}); return asked; }"
    assert of("chat/served.js", SERVED.replace("WHAT", ask)) == ["v1/chats/..%2Fpause%3Fx%3D"]


def test_what_others_wrote_is_told_though_a_search_saw_it_first_and_again_if_that_failed(of):
    ask = """async () => {
        open();
        await readAll();
        let n = 0;
        const leave = onOthers(async () => {
            n += 1;
            if (n === 1) throw new Error("nobody answers");
        });
        const deadline = performance.now() + 20e3;
        while (n < 2 && performance.now() < deadline) {
            document.dispatchEvent(new Event("visibilitychange"));
            await new Promise((next) => setTimeout(next, 20));
        }
        leave();
        return n;
    }"""
    assert of("chat/served.js", SERVED.replace("WHAT", ask)) == 2


def test_a_conversation_stays_in_memory_until_all_who_hold_it_release_it(of):
    ask = """async ({ beginNew, change, current, hold, library, release, show }) => {
        const { withMessage } = await import("/ui/request/conversations.js");
        const { id } = current();
        const [answer, summary] = [() => {}, () => {}];
        const leave = async () => {
            beginNew();
            const stayed = id in library.get().held;
            await show(id);
            return stayed;
        };
        await change(id, (was) => withMessage(was, null, { role: "user", text: "held twice" }));
        hold(id, answer);
        hold(id, summary);
        release(id, summary);
        const one = await leave();
        release(id, answer);
        return [one, await leave()];
    }"""
    assert of("chat/library.js", ask) == [True, False]


def test_a_file_goes_where_its_draft_went_while_it_was_read(of):
    ask = """async ({ attach, carry, draftOf }) => {
        const attached = attach({ id: "before", model: "" }, [new File([], "a.txt")]);
        carry("before", "after");
        await attached;
        return ["before", "after"].map((id) => [draftOf(id).reading, draftOf(id).refusals]);
    }"""
    assert of("chat/draft.js", ask) == [[0, []], [0, ["a.txt is empty."]]]


CUT = """async ({ eventsInSpiteOfCuts }, { quietMs, brokenMs, stored, status }) => {
    const { now } = Date;
    const { fetch } = window;
    let value = { text: "", pause: null, pauses: [], stream: { id: "s", after: 0, stored } };
    const answer = { get: () => value, set: (patch) => { value = { ...value, ...patch }; } };
    let aheadMs = 0;
    Date.now = () => now() + aheadMs;
    const cut = async function* () {
        yield { data: "first", id: "1" };
        aheadMs += quietMs;
        throw new TypeError("cut");
    };
    const rest = "id: 2\\ndata: [DONE]\\n\\n";
    const replies = [() => new Response("<html>", { status }), () => new Response(rest)];
    window.fetch = async () => {
        aheadMs += brokenMs;
        return replies.shift()();
    };
    const retry = setInterval(() => dispatchEvent(new Event("online")));
    const told = [];
    try {
        for await (const { data } of eventsInSpiteOfCuts(answer, cut)) told.push(data);
    } catch (error) {
        told.push(error.message);
    } finally {
        clearInterval(retry);
        window.fetch = fetch;
        Date.now = now;
    }
    return told;
}"""


@pytest.mark.parametrize(
    ("case", "last"),
    [
        pytest.param({"quietMs": 400_000}, "[DONE]", id="after-a-long-sleep"),
        pytest.param({"brokenMs": 400_000}, "HTTP 503", id="away-for-too-long"),
        pytest.param({"brokenMs": 400_000, "stored": True}, "[DONE]", id="stored-and-away-for-long"),
        pytest.param({"status": 500}, "HTTP 500", id="no-cut"),
    ],
)
def test_an_answer_is_read_on_after_a_cut_for_as_long_as_the_server_may_have_it(of, case, last):
    case = {"quietMs": 0, "brokenMs": 0, "stored": False, "status": 503} | case
    assert of("request/resume.js", CUT, case) == ["first", last]
