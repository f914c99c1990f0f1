"""A long conversation is no dead end: its context is told, its oldest part dropped or summed up."""

import pytest
from axe import violations
from hands import Voice, answered, button, kept, say
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

QUESTIONS = [f"Question {n}: " + "x" * 200 for n in range(4)]


@pytest.fixture(scope="module")
def small():
    """A site whose model reads 512 tokens at most."""
    with Site(n_slots=2, n_ctx=512) as site:
        yield site


def hold(page, *numbers):
    """Go on with a conversation of which the server says that each question and answer has 120 tokens."""
    voice = Voice(page)
    for i in numbers:
        say(page, QUESTIONS[i])
        voice.answer(f"Answer {i}", prompt_tokens=120 * i + 100, completion_tokens=20)
        expect(page.get_by_role("article")).to_have_count(i + 1)
        expect(button(page, "Send")).to_be_visible()
    return voice


def sent(voice):
    return [message["content"] for message in voice.sent[-1]["messages"]]


def test_the_context_is_told_and_the_oldest_dropped_and_read_again(make_page, small):
    page = make_page(small, "chat")
    hold(page, 0)
    meter = page.get_by_role("meter", name="Context")
    expect(meter).to_have_attribute("aria-valuetext", "about 120 of 512 tokens")
    expect(button(page, "Drop the oldest")).to_have_count(0)
    voice = hold(page, 1, 2, 3)
    expect(meter).to_contain_text("Context 94 % full")
    button(page, "Drop the oldest").click()
    expect(meter).to_have_attribute("aria-valuetext", "about 240 of 512 tokens")
    expect(page.locator(".start")).to_contain_text("The model reads from here on.")
    expect(page.locator(".asked")).to_have_count(4)  # they stay
    assert violations(page, "dropped") == []
    say(page, "And now?")
    voice.answer("Now")
    assert sent(voice) == [QUESTIONS[2], "Answer 2", QUESTIONS[3], "Answer 3", "And now?"]
    kept(page)
    page.reload()
    expect(page.locator(".start")).to_be_visible()
    button(page, "Read all").click()
    expect(page.locator(".start")).to_have_count(0)
    expect(page.get_by_role("meter", name="Context")).to_contain_text("full")


def test_the_oldest_are_summed_up_and_the_summary_is_read_in_their_place(make_page, small):
    page = make_page(small, "chat")
    voice = hold(page, *range(4))
    button(page, "Summarise and go on").click()
    expect(page.get_by_text("Summarising …")).to_be_visible()
    voice.asked(5)
    asked = sent(voice)
    assert asked[:4] == [QUESTIONS[0], "Answer 0", QUESTIONS[1], "Answer 1"]
    assert asked[4].startswith("Summarise our conversation")
    voice.answer("It was about x.")
    expect(page.locator(".start")).to_contain_text("and a summary of what came before")
    page.locator(".start summary").click()
    expect(page.locator(".start p")).to_have_text("It was about x.")
    say(page, "And now?")
    voice.answer("Now")
    first, *others = sent(voice)
    assert first == f"Summary of our conversation until now:\n\nIt was about x.\n\n{QUESTIONS[2]}"
    assert others == ["Answer 2", QUESTIONS[3], "Answer 3", "And now?"]


def test_a_question_that_no_longer_fits_is_asked_again_once_the_oldest_are_gone(make_page, small):
    page = make_page(small, "chat", allow=["400"])
    for n in range(2):
        say(page, f"{n}" * 180, temperature=0, max_tokens=5)
        expect(page.get_by_role("article")).to_have_count(n + 1)
        answered(page)
        expect(button(page, "Send")).to_be_visible()
    say(page, "3" * 180)
    expect(page.get_by_role("alert")).to_contain_text("context_length_exceeded")
    page.get_by_role("article").last.get_by_role("button", name="Drop the oldest").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    answered(page)
    assert page.get_by_role("article").last.locator(".text").inner_text()
