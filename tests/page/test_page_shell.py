"""The page's shell in a real browser: the first screen, what it weighs, its header, the page of the API."""

import re
from itertools import product

import httpx2
import pytest
from axe import violations
from hands import until_told

pytest.importorskip("playwright")
from playwright.sync_api import expect

MOST_BYTES = 152_000
"""As they are sent: packed, with their headers."""
VIEWS = ["Chat", "Compare", "Live ticks"]
FITS = """(width) => {
    const parts = [...document.querySelectorAll(".top > :not(.skip)")];
    const boxes = parts.map((part) => part.getBoundingClientRect()).filter((box) => box.width);
    const said = [...document.querySelectorAll(".brand, .pill > span")];
    return innerWidth === width && document.documentElement.scrollWidth === width
        && boxes.every(({ right }, i) => right <= (boxes[i + 1]?.left ?? width))
        && said.every((one) => one.scrollWidth <= one.clientWidth);
}"""
"""No part of the header covers another or leaves it, nor does what it says: in one look."""


def test_the_strip_draws_ticks_and_leads_to_them(make_page, site):
    page = make_page(site, "chat")
    expect(page.get_by_role("button", name="Compare SQLite")).to_be_visible()  # no prompts of tiny's
    httpx2.post(f"{site.url}/v1/completions", json={"prompt": "hello", "max_tokens": 30}).raise_for_status()
    for kind in ("decode", "prefill"):
        expect(page.locator(f".strip .{kind}")).to_have_attribute(
            "d", re.compile(r"v-(0\.[1-9]|1\.0)")
        )  # high
    page.locator(".strip").click()
    expect(page.get_by_role("region", name="Record of a tick")).to_be_visible()


def test_the_first_paint_is_light(browser, tiny):
    page = browser.new_page()
    fetched = []

    def note(request):
        fetched.append(request)

    page.on("requestfinished", note)
    page.goto(f"{tiny.url}/#chat", wait_until="load")
    expect(page.get_by_role("button", name="What is 17 + 25?")).to_be_visible()
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.fonts.check('15px Inter')")
    kinds = {"css", "js", "svg", "woff2"}
    until_told(page, lambda: {request.url.rpartition(".")[2] for request in fetched} >= kinds)
    files = [r for r in fetched if r.url.startswith(f"{tiny.url}/ui/") or r.url == f"{tiny.url}/"]
    sizes = {r.url: r.sizes() for r in files}
    raw = sum(len(r.response().body()) for r in files)
    weights = {url: size["responseBodySize"] + size["responseHeadersSize"] for url, size in sizes.items()}
    page.close()
    assert f"{tiny.url}/" in weights
    sent = sum(weights.values())
    heavy = sorted(weights.items(), key=lambda item: -item[1])
    assert sent < MOST_BYTES, f"{len(weights)} files, {sent:,} bytes sent, {raw:,} unpacked: {heavy}"


def test_addresses_choose_views_and_keep_what_follows_the_question_mark(make_page, site):
    page = make_page(site, "playground")  # its name until 2026
    page.wait_for_url(re.compile("#chat/new$"))  # it is replaced once conversations are known
    for view, hash_ in zip(VIEWS, ("chat", "compare?from=a", "ticks?at=5"), strict=True):
        page.goto(f"{site.url}/#{hash_}")
        expect(page.get_by_role("link", name=view, exact=True)).to_have_attribute("aria-current", "page")
        expect(page).to_have_title(f"{view} · cobali_ray")
        assert page.url.endswith(hash_)
    page.go_back()
    expect(page.get_by_role("link", name="Compare", exact=True)).to_have_attribute("aria-current", "page")
    expect(page.get_by_label("Your message")).to_be_visible()


def test_a_view_whose_modules_do_not_come_says_so(make_page, site):
    page = make_page(site, "chat", allow=["ERR_", "Failed to fetch"])
    page.route("**/ui/ticks/ticks.js", lambda route: route.abort())
    page.get_by_role("link", name="Live ticks").click()
    expect(page.get_by_role("heading", name="This part could not be loaded")).to_be_visible()
    page.unroute_all()
    page.get_by_role("button", name="Load the page again").click()
    expect(page.locator(".tiles")).to_be_visible()


def test_keys_reach_everything_and_focus_shows(make_page, tiny):
    page = make_page(tiny, "chat")
    expect(page.get_by_role("button", name="What is 17 + 25?")).to_be_visible()
    expect(page.get_by_label("Your message")).to_be_focused()
    skip = page.get_by_role("button", name="Skip to the content")
    skip.focus()
    assert skip.bounding_box()["x"] >= 0, "it comes into view"
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => {
                const { activeElement: at } = document;
                const { outlineStyle, outlineWidth } = getComputedStyle(at);
                return [at.textContent.trim() || at.ariaLabel || at.placeholder, outlineStyle, outlineWidth];
            }"""
            )
        )
    texts = [text for text, *_ in seen]
    assert {*VIEWS, "API", "What is 17 + 25?"} <= set(texts), texts
    assert all((style, width) == ("solid", "2px") for _, style, width in seen), seen
    page.evaluate("document.activeElement.blur()")
    skip.focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_colours_follow_the_system_and_then_the_choice(make_page, site):
    page = make_page(site, "chat")
    page.emulate_media(color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    button = page.get_by_role("button", name="Colours: auto")
    expect(button.locator("svg")).to_be_visible()
    button.click()
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
    assert page.evaluate(back) != dark
    page.get_by_role("button", name="Colours: light").click()
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    assert page.evaluate(back) == dark


def test_the_first_screen_is_accessible_and_fits_small_screens(make_page, tiny):
    page = make_page(tiny, "chat")
    expect(page.get_by_role("button", name="What is 17 + 25?")).to_be_visible()
    assert not violations(page)
    page.evaluate("document.querySelector('.pill .model').append('-with-a-long-name-4.5m:Q8_0')")
    for width, view in product((1024, 820, 600, 390), VIEWS):
        page.set_viewport_size({"width": width, "height": 844})
        page.get_by_role("link", name=view, exact=True).click()
        expect(page).to_have_title(re.compile(view))
        page.wait_for_function(FITS, arg=width)


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "two of the operations", "version": "1"},
    "servers": [{"url": "/"}],
    "paths": {
        "/v1/chat/completions": {"post": {"operationId": "chat", "responses": {}}},
        "/health": {"get": {"operationId": "health", "description": "always 200", "responses": {}}},
    },
}
"""Small: all operations take ten seconds to draw."""


def test_the_api_page_draws_the_operations_and_asks_no_other_host(make_page, site):
    page = make_page(site, "")
    page.route("**/openapi.json", lambda route: route.fulfill(json=DOCUMENT))
    page.goto(f"{site.url}/docs")
    expect(page.locator(".opblock-summary-path").first).to_contain_text("/v1/chat/completions")
    back = "getComputedStyle(document.querySelector('.scheme-container')).backgroundColor"
    light = page.evaluate(back)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"(light) => {back} !== light", arg=light)
    page.locator("[id$=-health] .opblock-summary-control").click()
    expect(page.locator(".opblock-body")).to_contain_text("always 200")
    page.locator(".top a").click()
    expect(page.get_by_label("Your message")).to_be_visible()
