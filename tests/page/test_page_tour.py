"""The first five minutes of somebody who has never seen the page, with the built-in model, in one go."""

import re

import pytest
from hands import open_tools

pytest.importorskip("playwright")
from playwright.sync_api import expect


def test_the_first_five_minutes(make_page, tiny):
    page = make_page(tiny, "")
    expect(page.get_by_role("heading", name="Chat with tiny")).to_be_visible()
    expect(page).to_have_title("Chat · cobali_ray")
    expect(page.locator(".strip")).to_contain_text("8 slots free")
    bullets = "Explain continuous batching in three bullet points."
    page.get_by_role("button", name=bullets).click()
    answer = page.get_by_role("article")
    expect(answer.get_by_role("listitem")).to_have_count(3)
    expect(answer).to_contain_text("stop")

    page.get_by_role("button", name="New chat", exact=True).click()
    open_tools(page, "Calculator")
    page.get_by_role("button", name="What is 17 + 25?").click()
    call = page.get_by_role("list", name="Tool calls")
    expect(call).to_contain_text("answered")
    expect(call).to_contain_text(re.compile(r"expression\s*17 \+ 25\s*42"))
    expect(page.get_by_role("article").last).to_contain_text("= 42")

    page.reload()
    kept = page.get_by_role("navigation", name="Conversations")
    expect(page.get_by_role("article").last).to_contain_text("= 42")  # this one is still in sight
    kept.get_by_role("button", name=bullets, exact=True).click()
    expect(page.get_by_role("article").get_by_role("listitem")).to_have_count(3)

    page.get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name=re.compile("a sailor and a lamp")).click()
    expect(page.locator(".together")).to_contain_text("2 answers ended")
    table = page.get_by_role("table")
    expect(table.get_by_role("row", name="TTFT")).to_contain_text("ms")
    expect(table.get_by_role("columnheader", name="B · temperature")).to_be_visible()
    expect(page.get_by_role("region", name="Text with differences")).to_be_visible()

    page.get_by_role("link", name="Live ticks").click()
    record = page.get_by_role("region", name="Record of a tick")
    expect(record).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("slider", name="Tick").focus()
    page.keyboard.press("Home")  # the first of all: the prompt of the first question
    expect(record).to_contain_text(re.compile(r"16 prompt tokens of one request were read"))
    expect(record).to_contain_text("One request got its first token")
