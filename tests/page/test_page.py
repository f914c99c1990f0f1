"""The live page in a real browser, over the whole server in this process."""

import ast
import contextlib
import io
import json
import re
import shlex

import httpx2
import pytest
from hands import IDLE, PHONE, compare, say, until
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

KEY = "a-key-of-the-tests"


def number(text):
    return int(re.sub(r"\D", "", text))


def now(slider):
    return int(slider.get_attribute("aria-valuenow"))


def test_a_chat_streams_says_what_it_took_and_can_be_asked_for_again_outside_of_the_page(make_page, site):
    page = make_page(site, "chat")
    expect(page.get_by_role("complementary", name="Settings")).to_have_count(0)
    say(page, 'say "it\'s" \\ twice', max_tokens=20, temperature=0, top_k=5)
    answer = page.get_by_role("article")
    expect(answer).to_contain_text("length")
    expect(answer).not_to_contain_text("easoning")
    assert len(answer.locator(".text").inner_text()) == 20
    line = answer.locator(".measured > summary")
    expect(line).to_have_text(re.compile(r"20 tokens · [\d.]+.tok/s · cut off at its length limit"))
    expect(answer.get_by_text("TTFT")).to_be_hidden()
    expect(page.get_by_role("status", name="Answer")).to_have_text("The answer is complete.")
    line.focus()
    page.keyboard.press("Enter")
    expect(answer.get_by_text("TTFT")).to_be_visible()
    assert page.locator(".turns").bounding_box()["width"] <= 720
    assert re.search(r"TTFT\s*\d.*ms", answer.text_content())
    assert re.search(r"output\s*20.tok", answer.text_content())
    speed = page.locator(".numbers div", has_text="speed")
    expect(speed).to_have_attribute("title", re.compile("as the server measured it"))
    pace = float(re.search(r"([\d.,]+).tok/s", speed.text_content())[1].replace(",", ""))
    assert pace < 110, "a tick takes 10 ms"

    page.get_by_role("button", name="Copy request").click()
    page.get_by_role("button", name="Python").click()
    code = page.get_by_label("Code")
    expect(code).to_contain_text("from openai import")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(ast.parse(code.inner_text()), "snippet", "exec"), {})  # what a user would paste
    assert out.getvalue() == answer.locator(".text").inner_text() + "\n"
    page.keyboard.press("Escape")
    say(page, "and now?")
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.get_by_role("article").last).to_contain_text("length")
    page.get_by_role("button", name="Copy request").click()
    page.get_by_role("button", name="curl", exact=True).click()
    expect(code).to_contain_text("curl -N")
    words = shlex.split(code.inner_text().replace("\\\n", " "))
    sent = json.loads(words[words.index("-d") + 1])
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1].keys() == {"role", "content"}
    assert (sent["max_tokens"], sent["temperature"], sent["stream"]) == (20, 0, True)
    assert words[:3] == ["curl", "-N", f"{site.url}/v1/chat/completions"]


def test_ticks_show_while_a_load_runs(make_page, site):
    page = make_page(site, "chat")
    compare(page, 6, max_tokens=3000)
    page.get_by_role("link", name="Live ticks").click()
    slider = page.get_by_role("slider", name="Tick")
    record = page.get_by_role("region", name="Record of a tick")
    expect(record).to_contain_text("6 generating")
    expect(page.locator(".tile").filter(has_text="Slots busy")).to_contain_text("6 of 8")
    for name in ("Tokens of each tick", "Slots", "Time of each tick", "Waiting requests", "KV cache in use"):
        expect(page.get_by_role("img", name=name)).to_be_visible()
    before = int(slider.get_attribute("aria-valuemax"))
    page.wait_for_function(
        "(before) => Number(document.querySelector('.cursor').ariaValueMax) > before + 20", arg=before
    )  # so that all six wrote in the ticks that are chosen

    # By keyboard: choose ticks, which pauses; then a lane and its request.
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("button", name="Go live")).to_be_visible()
    chosen = now(slider)
    page.keyboard.press("Shift+ArrowLeft")
    expect(slider).to_have_attribute("aria-valuenow", str(chosen - 10))
    expect(record.get_by_role("heading", level=2)).to_have_text(f"Tick {chosen - 10:,}")
    assert re.search(r"6 decode and 0 prefill tokens in \d", slider.get_attribute("aria-valuetext"))
    held = number(record.locator(".spans li > span").first.inner_text())
    for _ in range(held + 1):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    life = page.get_by_role("region", name="Life of a request")
    expect(life).to_contain_text("generating")
    expect(life.get_by_role("img")).to_be_visible()
    oldest = httpx2.get(f"{site.url}/debug/ticks?last=4096").json()["ticks"][0]["tick_id"]
    first = page.wait_for_function(
        "(oldest) => [document.querySelector('.cursor').ariaValueMin].find((id) => Number(id) <= oldest)",
        arg=oldest,
    ).json_value()  # fetched, because somebody looks back
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuenow", first)

    # By pointer: hold, read, pin, follow.
    page.get_by_role("button", name="Go live").click()
    lanes = page.locator(".lanes")
    lanes.scroll_into_view_if_needed()
    box = lanes.bounding_box()
    lanes.hover(position={"x": box["width"] * 0.7, "y": held * box["height"] / 8 + 10})
    expect(page.get_by_text("held")).to_be_visible()
    lanes.click(position={"x": box["width"] * 0.7, "y": held * box["height"] / 8 + 10})
    pointed = now(slider)
    expect(record.get_by_role("heading", level=2)).to_have_text(f"Tick {pointed:,}")
    expect(page.locator(".requests tr.chosen")).to_have_count(1)

    # Back in time, and on again; the load ends by leaving.
    page.get_by_role("slider", name="Part that is shown").press("ArrowLeft")
    expect(page.get_by_text("paused")).to_be_visible()
    page.get_by_role("button", name="Go live").click()
    page.get_by_role("link", name="Compare").click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Stop").click()
    until(page, IDLE)


def test_the_table_and_a_life_say_what_held_a_prompts_beginning(make_page, site):
    ask = {"prompt": "What this prompt begins with is long enough to be kept.", "max_tokens": 2}
    for _ in range(2):
        httpx2.post(f"{site.url}/v1/completions", json=ask).raise_for_status()
    page = make_page(site, "ticks")
    row = page.get_by_role("region", name="Table of requests").get_by_role("row").nth(1)
    expect(row).to_contain_text(re.compile("53(another|its own) slot"))
    row.get_by_role("button").click()
    life = page.get_by_role("region", name="Life of a request")
    expect(life).to_contain_text(re.compile("53 of them were in (another|its own) slot"))


def test_a_keyed_server_is_asked_with_the_key(make_page):
    with Site(api_keys=[KEY]) as site:
        page = make_page(site, "ticks", allow=["401", "ERR_"])
        form = page.get_by_role("form", name="API key")
        expect(form).to_contain_text("asks for an API key")

        def is_refused(response):
            sent = response.request.headers.get("authorization")
            return "debug/ticks" in response.url and response.status == 401 and sent == "Bearer wrong"

        for _ in range(2):  # each until its answer, or the form that is filled next is still the one before
            with page.expect_response(is_refused):
                form.get_by_label("API key").fill("wrong")
                page.keyboard.press("Enter")
            expect(form).to_contain_text("refused")
        form.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        expect(form).to_have_count(0)
        expect(page.locator(".pill")).to_contain_text("0 of 8 slots busy")
        page.get_by_role("link", name="Chat").click()
        say(page, "hello", max_tokens=5)
        expect(page.get_by_role("article")).to_contain_text("length")
        page.get_by_role("link", name="Live ticks").click()
        row = page.get_by_role("region", name="Table of requests").get_by_role("row").nth(1)
        row.get_by_role("button").click()
        life = page.get_by_role("region", name="Life of a request")
        expect(life).to_contain_text(re.compile(r"Tenant\s*key-1\s*class 0"))
        expect(life).not_to_contain_text("Continued")
        page.get_by_role("link", name="Chat").click()
        page.get_by_role("button", name="Copy request").click()
        assert KEY not in page.content(), "the key is shown nowhere"
        assert KEY not in page.evaluate("JSON.stringify(localStorage)")
        assert KEY in page.evaluate("JSON.stringify(sessionStorage)")


SMALL = """() => [...document.querySelectorAll("button, select, summary, input, textarea")]
    .map((e) => [e.textContent || e.getAttribute("aria-label"), e.getBoundingClientRect()])
    .filter(([, { width, height }]) => width > 1 && height > 0 && (height < 44 || width < 44))
    .map(([name, { width, height }]) => `${name} ${width}x${height}`)"""


def test_it_fits_a_phone_and_a_finger_and_shows_the_request_that_was_chosen(make_page, site):
    page = make_page(site, "chat", **PHONE)
    say(page, "w" * 200, max_tokens=30)
    expect(page.get_by_role("article")).to_contain_text("length")
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == 360
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(SMALL) == [], "what a finger presses has 44 px either way"
    page.set_viewport_size(PHONE["viewport"])
    page.get_by_role("link", name="Live ticks").tap()
    page.locator(".lanes").tap(position={"x": 100, "y": 8})
    expect(page.get_by_role("button", name="Go live")).to_be_visible()
    assert page.evaluate(wide) == 360
    page.locator(".requests tbody button").first.tap()
    heading = page.get_by_role("region", name="Life of a request").get_by_role("heading", level=2)
    expect(heading).to_have_text(re.compile("^Request"))
    expect(heading).to_be_in_viewport()
    expect(heading).to_be_focused()
