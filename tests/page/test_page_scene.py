"""Live ticks show a newcomer a long prompt arriving, on the running server and within bounds."""

import re

import pytest
from hands import IDLE, until
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

PLAY = "Show me a long prompt arriving"
TOLD = "() => fetch('/debug/ticks?last=4096').then((r) => r.json())"


@pytest.fixture(scope="module")
def small():
    with Site(n_slots=3, n_ctx=1024, model="builtin:scripted:0.01") as site:
        yield site


def test_a_long_prompt_arrives_beside_streams_and_what_it_cost_is_said(make_page, small):
    page = make_page(small, "ticks")
    until(page, IDLE)
    n_before = len(page.evaluate(TOLD)["requests"])
    page.get_by_role("button", name=PLAY).focus()
    page.keyboard.press("Enter")
    told = page.locator(".scene [role=status]")
    expect(told).to_contain_text(re.compile(r"\d{3} tokens were read in \d+ ticks, .* 2 streams went on"))
    page.get_by_role("button", name="Follow this prompt").click()
    page.get_by_role("region", name="Life of a request").get_by_role("button", name="Show its ticks").click()
    page.get_by_role("slider", name="Tick").press("ArrowLeft")
    expect(page.locator(".record .told")).to_be_in_viewport(ratio=1)  # though the life was brought into sight
    until(page, IDLE)  # nothing of it is left running
    requests = page.evaluate(TOLD)["requests"]
    asked = [(request["n_prompt"], request["n_output"]) for request in requests[n_before:]]
    assert len(asked) == 3
    longest = max(n for n, _ in asked)
    assert 300 < longest < 700, "most of a slot, and not more"
    assert all(n <= 256 for _, n in asked)


def test_it_does_not_begin_beside_others_and_ends_when_it_is_stopped(make_page, small):
    page = make_page(small, "ticks")
    until(page, IDLE)
    with small.held(5):
        page.evaluate("""() => { window.other = new AbortController();
            fetch("/v1/completions", { method: "POST", signal: other.signal, body:
                JSON.stringify({ prompt: "x", max_tokens: 900, ignore_eos: true }),
                headers: { "content-type": "application/json" } }).catch(() => {}); }""")
        expect(page.locator(".pill")).to_contain_text("1 of 3 slots busy")
        page.get_by_role("button", name=PLAY).click()
        expect(page.locator(".scene")).to_contain_text("The engine is answering others")
        page.evaluate("() => window.other.abort()")
    expect(page.locator(".pill")).to_contain_text("0 of 3 slots busy")
    with small.held(5):  # so that it cannot be over before it is stopped
        page.get_by_role("button", name=PLAY).click()
        page.locator(".scene").get_by_role("button", name="Stop").click()
        expect(page.locator(".scene")).to_contain_text("The demonstration was stopped.")
    until(page, IDLE)
