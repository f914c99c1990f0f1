"""A chat goes on: messages are edited, answers asked for again, stopped, cut off and continued, tools run."""

import json
import re

import pytest
from hands import IDLE, SAID, Voice, answered, button, kept, open_tools, say, until
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect


def texts(page):
    return page.get_by_role("article").locator(".text")


def of_user(*messages):
    return [message["content"] for message in messages if message["role"] == "user"]


def test_messages_are_edited_and_answers_asked_for_again_without_losing_any(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "Count to 3.")
    voice.answer("1 2 3")
    expect(texts(page)).to_have_text("1 2 3")
    button(page, "Regenerate").click()
    voice.answer("One, two, three")
    expect(texts(page)).to_have_text("One, two, three")
    assert voice.sent[1]["messages"] == voice.sent[0]["messages"]
    versions = page.get_by_role("group", name="Versions of this answer")
    expect(versions).to_have_text("2/2")
    versions.get_by_label("Version before").click()
    expect(texts(page)).to_have_text("1 2 3")
    say(page, "And on.")
    voice.answer("4 5 6")
    expect(texts(page)).to_have_text(["1 2 3", "4 5 6"])
    assert [m["content"] for m in voice.sent[2]["messages"]] == ["Count to 3.", "1 2 3", "And on."]

    button(page, "Edit").first.click()
    page.keyboard.press("Escape")
    button(page, "Edit").first.click()
    page.get_by_label("Edit your message").fill("Count to 2.")
    page.keyboard.press("Enter")
    voice.answer("1 2")
    expect(page.locator(".asked")).to_have_text("You: Count to 2.")
    assert of_user(*voice.sent[3]["messages"]) == ["Count to 2."]
    page.get_by_role("group", name="Versions of this message").get_by_label("Version before").click()
    expect(texts(page)).to_have_text(["1 2 3", "4 5 6"])
    expect(page.locator(".asked")).to_have_text(["You: Count to 3.", "You: And on."])


def test_keys_go_on_where_a_button_went_away(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    prompt = page.get_by_label("Your message")

    def focus(name):
        expect(button(page, name).last).to_be_enabled()  # not before an answer has ended
        button(page, name).last.focus()
        expect(button(page, name).last).to_be_focused()

    def press(name):
        focus(name)
        page.keyboard.press("Enter")

    page.get_by_role("button", name="Compare SQLite").focus()
    page.keyboard.press("Enter")
    expect(prompt).to_be_focused()
    voice.answer("1", "length")
    press("Continue")
    expect(prompt).to_be_focused()
    voice.answer(" 2")
    press("Regenerate")
    expect(prompt).to_be_focused()
    voice.answer("3")
    press("Edit")
    page.keyboard.press("Enter")
    expect(prompt).to_be_focused()
    voice.answer("4")
    expect(texts(page)).to_have_text("4")
    press("Version before")
    expect(texts(page)).to_have_text("3")
    expect(button(page, "Version after").first).to_be_focused()  # there is none before
    page.keyboard.press("Enter")
    expect(texts(page)).to_have_text("4")
    expect(button(page, "Version before")).to_be_focused()
    button(page, "Regenerate").click()
    expect(texts(page)).to_have_count(0)
    expect(prompt).not_to_be_focused()  # a finger would call up a keyboard
    voice.answer("5")
    press("Regenerate")
    voice.answer("6")
    expect(texts(page)).to_have_text("6")
    focus("Version before")
    for name, text in (("before", "5"), ("after", "4"), ("after", "5")):
        page.keyboard.press("Enter")
        expect(texts(page)).to_have_text(text)
        expect(button(page, f"Version {name}").last).to_be_focused()


def test_an_answer_that_reached_its_length_goes_on_as_if_it_had_not(make_page, site):
    page = make_page(site, "chat")
    say(page, "hello", max_tokens=24, temperature=0)
    answered(page)
    whole = texts(page).inner_text()
    button(page, "New chat").click()
    say(page, "hello", max_tokens=12, temperature=0)
    answered(page)
    assert texts(page).inner_text() == whole[:12]
    button(page, "Continue").click()
    expect(texts(page)).to_have_text(whole)
    expect(page.locator(".versions")).to_have_count(0)
    expect(page.locator(".asked")).to_have_count(1)


def test_a_stopped_answer_keeps_what_came_and_goes_on(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "hello")
    expect(button(page, "Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("article")).to_contain_text("stopped by you")
    kept(page)
    expect(button(page, "Continue")).to_have_count(0)  # of nothing
    button(page, "Regenerate").click()
    voice.say(content="It was")
    expect(texts(page)).to_have_text("It was")
    button(page, "Stop").click()
    button(page, "Continue").click()
    sent = voice.asked(3)
    assert sent["continue_final_message"] is True
    assert sent["messages"][-1] == {"role": "assistant", "content": "It was"}
    expect(texts(page)).to_have_text("It was")
    voice.answer(" noon.")
    expect(texts(page)).to_have_text("It was noon.")
    kept(page)
    page.reload()
    expect(texts(page)).to_have_text("It was noon.")
    expect(page.locator(".versions")).to_have_count(0)


def test_what_had_come_outlives_the_server(make_page):
    with Site() as site:
        page = make_page(site, "chat", allow=["ERR_", "Failed to load"])
        say(page, "a long one", max_tokens=3000)
        page.wait_for_function("() => document.querySelector('.answer .text')?.innerText.length > 60")
        before = page.evaluate(SAID)
    expect(page.get_by_role("article")).to_contain_text("The server does not answer")
    expect(page.locator("main > [role=status]")).to_contain_text("The server cannot be reached")
    assert page.evaluate(SAID).startswith(before)
    button(page, "Stop").click()
    expect(button(page, "Continue")).to_be_enabled()


def test_tools_are_run_and_their_results_sent_back(make_page, site):
    page = make_page(site, "chat")
    open_tools(page, "Calculator")
    page.get_by_label("Your own tools, as JSON").fill('{"name": "look_up"}')
    voice = Voice(page)
    say(page, "What is 6 * 7, and who asked?")
    assert [tool["function"]["name"] for tool in voice.asked(1)["tools"]] == ["calculate", "look_up"]
    voice.call(0, "calculate", '{"expression": "6 * 7"}')
    voice.end("tool_calls")
    question, call, result = voice.asked(2)["messages"]  # by itself
    (made,) = call["tool_calls"]
    assert (made["function"]["name"], call["role"], question["role"]) == ("calculate", "assistant", "user")
    assert result == {"role": "tool", "tool_call_id": made["id"], "content": "42"}
    voice.call(0, "look_up", "{}")
    voice.end("tool_calls")
    form = page.get_by_label("Result of look_up")
    form.fill("Ada")
    page.reload()  # nothing of it is lost but what was being typed
    voice = Voice(page)
    expect(page.get_by_role("list", name="Tool calls").first).to_contain_text("42")
    form.fill("Ada")
    button(page, "Send result").click()
    messages = voice.asked(1)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert messages[-1]["content"] == "Ada"
    voice.answer("42, for Ada.")
    expect(texts(page)).to_have_text("42, for Ada.")


def test_a_model_that_only_calls_tools_is_asked_eight_times(make_page, site):
    page = make_page(site, "chat")
    open_tools(page, "Calculator")
    voice = Voice(page)
    say(page, "Go on calculating.")
    for n in range(1, 9):
        voice.asked(n)
        voice.call(0, "calculate", '{"expression": "1 + 1"}')
        voice.end("tool_calls")
    expect(button(page, "Send")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(8)
    assert len(voice.sent) == 8
    button(page, "Continue").click()  # who wants it can have more
    voice.asked(9)
    button(page, "Stop").click()
    expect(button(page, "Send")).to_be_visible()


def test_a_full_queue_says_when_to_try_again(make_page, site):
    page = make_page(site, "chat", allow=["429"])
    full = {"error": {"message": "The queue is full.", "type": "x", "code": "queue_full"}}
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=429, headers={"retry-after": "3000"}, body=json.dumps(full)),
    )
    say(page, "hello", max_tokens=5)
    expect(page.get_by_role("alert")).to_contain_text("The queue is full.")
    again = page.get_by_role("button", name="Try again in")
    expect(again).to_be_disabled()
    expect(again).to_have_text(re.compile(r"in (29\d\d|3000) s"))
    page.unroute_all()
    page.evaluate("() => { const { now } = Date; Date.now = () => now() + 3_000_000; }")
    button(page, "Try again").click()
    answered(page)
    expect(page.locator(".versions")).to_have_count(0)


def test_who_waits_sees_the_line_and_how_far_the_prompt_is_read(make_page):
    with Site(n_slots=1, model="builtin:scripted:0.04", prefill_chunk=32) as site:
        page = make_page(site, "chat", allow=["ERR_"])
        say(page, "the first", max_tokens=3000)
        expect(page.locator(".caret")).to_be_visible()
        page.keyboard.press("Control+Shift+O")
        expect(page.locator(".asked")).to_have_count(0)
        say(page, "w" * 2500, max_tokens=3)
        waiting = page.locator("p.waiting")
        expect(waiting).to_have_text("waiting for a slot, next in line …")
        page.keyboard.press("Control+Shift+O")
        expect(page.locator(".asked")).to_have_count(0)
        say(page, "the third", max_tokens=3)
        expect(waiting).to_have_text("waiting for a slot, 1 ahead …")
        conversations = page.get_by_role("navigation", name="Conversations").locator(".conversation")
        expect(conversations.get_by_label("answering")).to_have_count(3)
        conversations.nth(2).click()
        expect(page.locator(".asked")).to_have_text("You: the first")
        button(page, "Stop").click()
        until(page, "() => fetch('health').then((r) => r.json()).then((h) => h.engine.n_queued === 1)")
        with site.held(9):  # or it might be read before anybody looks
            conversations.nth(1).click()
            expect(waiting).to_have_text(re.compile(r"reading the prompt: [\d,]+ of 2,5\d\d tokens"))
        expect(page.get_by_role("article")).to_contain_text("length")
        until(page, IDLE)
