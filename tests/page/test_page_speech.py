"""Answers that are more than text: reasoning and tool calls."""

import re

import pytest
from axe import violations
from hands import Voice, compare, say
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

THOUGHT = "The user wants noon, which is twelve o'clock.\nSo I say that. " * 12
MOVING = {"reduced_motion": "no-preference"}
THINKS = """\
{%- for message in messages -%}
{{ message.role }}: {% if message.reasoning_content -%}
<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content }}
{% endfor -%}
{% if add_generation_prompt %}assistant: <think>{% endif %}"""


@pytest.fixture(scope="module")
def thinking_site(tmp_path_factory):
    """A model that thinks until its tokens are used up: it never says the word that ends it."""
    template = tmp_path_factory.mktemp("template") / "thinks.jinja"
    template.write_text(THINKS)
    with Site(chat_template=template) as site:
        yield site


def top_of(locator):
    return locator.bounding_box()["y"]


def test_a_model_that_only_thinks_is_heard_and_counted(make_page, thinking_site):
    page = make_page(thinking_site, "chat")
    say(page, "hello", max_tokens=20, temperature=0)
    answer = page.get_by_role("article")
    expect(answer).to_contain_text("length")
    expect(answer.locator(".numbers")).to_contain_text(re.compile(r"output\s*20.tok\s*reasoning\s*20.tok"))
    assert re.search(r"TTFT\s*\d.*ms", answer.text_content())
    assert re.search(r"speed\s*\d.*tok/s", answer.text_content())
    expect(answer).to_contain_text("It ended before the answer began.")
    answer.locator(".reasoning summary").click()
    thought = answer.locator(".reasoning p").inner_text()
    with page.expect_request("**/v1/chat/completions") as second:
        say(page, "and now?")
    expect(page.get_by_role("article").last).to_contain_text("length")
    assert second.value.post_data_json["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "reasoning_content": thought},
        {"role": "user", "content": "and now?"},
    ]


def test_reasoning_grows_in_one_line_and_nothing_moves_when_the_answer_begins(make_page, site):
    page = make_page(site, "chat", **MOVING)
    voice = Voice(page)
    say(page, "hello")
    answer = page.get_by_role("article")
    footer = answer.locator("footer")
    expect(answer).to_contain_text("waiting for the first token")
    first = top_of(footer)
    voice.say(reasoning_content=THOUGHT, reasoning=THOUGHT)
    summary = answer.locator(".reasoning summary")
    expect(summary.locator(".caret")).to_be_visible()
    expect(answer.locator("details p")).not_to_be_visible()
    tail, said = summary.locator(".tail").bounding_box(), summary.locator(".tail span").bounding_box()
    assert said["width"] > tail["width"], "more than fits"
    assert abs(said["x"] + said["width"] - tail["x"] - tail["width"]) < 1, "its last words are those in sight"
    voice.say(reasoning_content="Done.", reasoning="Done.")
    expect(summary.locator(".tail")).to_have_text(re.compile(r"So I say that\. Done\.$"))
    assert top_of(footer) == first
    before = top_of(summary)
    voice.say(content="Noon.")
    expect(answer.locator(".text")).to_have_text("Noon.")
    expect(answer.locator(".text .caret")).to_be_visible()
    assert top_of(summary) == before
    assert summary.bounding_box()["height"] < 24
    expect(summary).to_have_text(re.compile(r"^Reasoning\d.*s$"))
    voice.end(completion_tokens=40, completion_tokens_details={"reasoning_tokens": 30})
    expect(footer).to_contain_text(re.compile(r"output\s*40.tok\s*reasoning\s*30.tok"))
    expect(answer.locator(".caret")).to_have_count(0)
    summary.focus()
    page.keyboard.press("Enter")
    expect(answer.locator("details p")).to_have_text(THOUGHT + "Done.")
    say(page, "and now?")
    expect(page.get_by_role("article")).to_have_count(2)
    assert voice.asked(2)["messages"][1] == {
        "role": "assistant",
        "content": "Noon.",
        "reasoning_content": THOUGHT + "Done.",
    }


def test_reasoning_that_is_read_stays_open_while_it_grows(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "hello")
    voice.say(reasoning_content="First")
    thought = page.locator(".reasoning p")
    expect(page.locator(".tail")).not_to_be_visible()  # words that run by are for who wants motion
    page.locator(".reasoning summary").click()
    expect(thought).to_have_text("First")
    voice.say(reasoning_content=", second")
    expect(thought).to_have_text("First, second")
    voice.say(content="Noon.")
    expect(page.locator(".answer .text")).to_be_visible()
    expect(thought).to_be_visible()


def test_tool_calls_are_shown_as_they_are_written(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "the weather?")
    voice.call(0, "weather")
    calls = page.get_by_role("list", name="Tool calls").get_by_role("listitem")
    expect(calls).to_have_text([re.compile(r"weather\s*being written")])
    voice.call(0, arguments='{"city": ')
    expect(calls.locator("pre")).to_have_text('{"city":')
    voice.call(0, arguments='"Oslo"}')
    voice.call(1, "now", "{}")
    expect(calls.first).to_contain_text(re.compile(r"weather\s*called\s*city\s*Oslo"))
    expect(calls.last.locator(".caret")).to_be_visible()
    voice.end("tool_calls", completion_tokens=20)
    expect(calls.last).to_contain_text(re.compile(r"now\s*called\s*no arguments"))
    expect(page.locator(".badge")).to_have_text("tool_calls")
    say(page, "well?")
    expect(page.get_by_role("article")).to_have_count(2)
    assert voice.asked(2)["messages"] == [{"role": "user", "content": "well?"}], "no call without a result"
    voice.say(reasoning_content="Hm.")
    voice.call(0, "now", "{}")
    voice.end("tool_calls", completion_tokens=9)
    answer = page.get_by_role("article").last
    expect(answer.locator(".badge")).to_have_text("tool_calls")
    expect(answer).not_to_contain_text("It ended before the answer began.")


def test_reasoning_is_accessible(make_page, site):
    page = make_page(site, "chat", **MOVING)
    voice = Voice(page)
    say(page, "hello")
    voice.say(reasoning_content=THOUGHT)
    expect(page.locator(".tail")).to_be_visible()
    voice.end(completion_tokens=20)
    compare(page, 2)
    for choice in range(2):
        voice.say(choice, reasoning_content=THOUGHT)
    page.locator(".grid .reasoning summary").first.click()
    expect(page.get_by_role("region", name="Reasoning of Stream 1")).to_be_visible()
    assert not violations(page), "in a card, where it scrolls"
