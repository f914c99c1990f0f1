"""Word by word: what else was likely at a place of an answer, and going on from there as a branch."""

import math
import re

import httpx2
import pytest
from axe import violations
from hands import SAID, answered, compare, open_settings, say

pytest.importorskip("playwright")
from playwright.sync_api import expect


def asked_bodies(page):
    """Return a list that fills with the bodies of the page's chats."""
    bodies = []
    page.on("request", lambda r: r.url.endswith("/v1/chat/completions") and bodies.append(r.post_data_json))
    return bodies


def test_a_word_s_alternatives_are_shown_and_one_is_gone_on_from(make_page, site):
    page = make_page(site, "chat")
    bodies = asked_bodies(page)
    say(page, "Plain", temperature=0, max_tokens=12)
    answered(page)
    expect(page.get_by_role("button", name="Words", exact=True)).to_have_count(0)
    assert "logprobs" not in bodies[0], "who does not ask pays nothing"

    open_settings(page)
    page.get_by_label("alternatives for each word").check()
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("button", name="Words", exact=True).click()
    words = page.get_by_role("region", name="Words of this answer")
    expect(words.locator(".word")).to_have_count(12)
    ask = {**bodies[1], "stream": False, "stream_options": None, "resumable": None}
    choice = httpx2.post(f"{site.url}/v1/chat/completions", json=ask).raise_for_status().json()["choices"][0]
    text, tokens = choice["message"]["content"], choice["logprobs"]["content"]
    assert page.evaluate(SAID) == text

    words.locator(".word").nth(3).click()
    choices = page.get_by_role("group", name="Likely here").get_by_role("button")
    top = tokens[3]["top_logprobs"]
    expect(choices).to_have_count(len(top))
    expect(choices.first).to_contain_text(re.compile(rf"{100 * math.exp(top[0]['logprob']):.0f}"))
    expect(choices.first).to_contain_text("written")
    page.keyboard.press("ArrowRight")
    expect(words.locator(".word").nth(4)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    assert violations(page) == []
    choices.nth(1).click()
    expect(page.get_by_role("group", name="Versions of this answer")).to_have_text("3/3")
    answered(page)
    said = page.evaluate(SAID)
    beginning = "".join(token["token"] for token in tokens[:3]) + top[1]["token"]
    assert said.startswith(beginning)
    assert len(said) > len(beginning)
    assert bodies[2]["continue_final_message"] is True
    assert bodies[2]["messages"][-1] == {"role": "assistant", "content": beginning}
    page.get_by_role("button", name="Words", exact=True).click()
    expect(words.locator(".word")).to_have_count(len(said))
    page.reload()
    expect(page.get_by_role("button", name="Words", exact=True)).to_be_visible()


@pytest.mark.thorough
def test_compared_answers_are_shown_word_by_word_side_by_side(make_page, site):
    page = make_page(site, "compare")
    page.get_by_label("alternatives for each word").check()
    compare(page, 2, max_tokens=6, temperature=0)
    for stream in ("Stream 1", "Stream 2"):
        article = page.get_by_role("article").filter(has=page.get_by_role("heading", name=stream))
        article.get_by_role("button", name="Words", exact=True).click()
        words = article.get_by_role("region", name=f"Words of {stream}")
        expect(words.locator(".word")).to_have_count(6)
        assert words.locator(".line").inner_text() == article.locator(".text").inner_text()
        words.locator(".word").nth(2).click()
        choices = words.get_by_role("group", name="Likely here")
        expect(choices).to_contain_text("written")
        expect(choices.get_by_role("button")).to_have_count(0)
    assert violations(page) == []


def test_a_long_answer_has_a_way_to_its_end(make_page, site):
    page = make_page(site, "chat", viewport={"width": 900, "height": 500})
    say(page, "Long\n" * 60, temperature=0, max_tokens=5)
    answered(page)
    jump = page.get_by_role("button", name="Jump to the end")
    expect(jump).to_have_count(0)
    page.evaluate("scrollTo(0, 0)")
    jump.click()
    expect(jump).to_have_count(0)
    expect(page.locator(".turns .end")).to_be_in_viewport()
