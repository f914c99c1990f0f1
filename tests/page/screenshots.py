"""Take the pictures of docs/page.md and docs/tour.md: `python tests/page/screenshots.py docs`.

The built-in chat model in this process, as a visitor of the first five minutes sees it; needs a Chromium
(`make browser`).
"""

import io
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx2
from hands import open_tools, say
from PIL import Image
from playwright.sync_api import expect, sync_playwright
from stack import Site

from conftest import CHROMIUM

SETTINGS = {"model": "builtin:tiny", "n_threads": 1, "itl_target_ms": 30}
LONG = "Whoever reads this should count the lamps, the boats and the gulls, and say how many there were. "
N_STREAMS = 5
WIDE = {"viewport": {"width": 1400, "height": 900}, "color_scheme": "light", "reduced_motion": "reduce"}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}


def save(page, path, **options):
    """Keep a picture in 256 colours, which takes a third of the bytes."""
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    image = Image.open(io.BytesIO(page.screenshot(**options))).convert("RGB")
    few = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def chat(page, folder, name="page-chat.png"):
    page.get_by_role("button", name=re.compile("three bullet points")).click()
    expect(page.locator(".numbers")).to_contain_text("stop")
    say(page, "What is a slot?")
    expect(page.locator(".numbers").last).to_contain_text("stop")
    expect(page.locator(".markdown li")).to_have_count(3)  # what reads it is fetched just then
    expect(page.get_by_role("banner")).to_contain_text("0 of 8 slots busy")
    save(page, folder / name)


def tool_call(page, folder):
    page.get_by_role("button", name="New chat", exact=True).click()
    open_tools(page, "Calculator")
    page.get_by_role("button", name="What is 17 + 25?").click()
    expect(page.get_by_role("article").last).to_contain_text("= 42")
    expect(page.locator(".numbers").last).to_contain_text("stop")
    save(page, folder / "page-tool-call.png")


def comparison(page, folder):
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name=re.compile("a sailor and a lamp")).click()
    expect(page.get_by_role("region", name="Text with differences")).to_be_visible()
    page.set_viewport_size({"width": 1400, "height": 1460})
    save(page, folder / "page-compare.png")
    page.set_viewport_size(WIDE["viewport"])


def ask(url, text, max_tokens):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True}
    with httpx2.Client(timeout=120) as http, suppress(httpx2.HTTPError):
        http.post(f"{url}/v1/chat/completions", json=body)


def load(url):
    """Stream to several clients, and have one long prompt come while they stream."""
    streams = [
        threading.Thread(target=ask, args=(url, f"Tell me a story, number {number}.", 400))
        for number in range(N_STREAMS)
    ]
    for stream in streams:
        stream.start()
    threading.Event().wait(0.5)
    ask(url, LONG * 60, 40)
    for stream in streams:
        stream.join()


def ticks(page, url, path, **options):
    """Paused on the axis of time, around the long prompt, with the record of a tick that read some of it."""
    page.goto(f"{url}/#ticks")
    expect(page.get_by_role("region", name="Record of a tick")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Time", exact=True).click()
    page.get_by_role("button", name=re.compile("prompt, tok")).click()  # the longest first
    page.get_by_role("region", name="Table of requests").locator("tbody button").first.click()
    page.get_by_role("button", name="Show its ticks").click()
    plot = page.get_by_role("img", name="Tokens of each tick")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    plot.click(position={"x": box["width"] * 0.45, "y": box["height"] * 0.5})
    expect(page.get_by_role("region", name="Record of a tick")).to_contain_text("were read")
    page.evaluate("document.querySelector('.side').scrollTo(0, 0)")
    page.evaluate("scrollTo(0, 0)")
    save(page, path, **options)


def main():
    expect.set_options(timeout=60_000)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    with Site(**SETTINGS) as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(**WIDE)
        page.goto(site.url)
        chat(page, folder)
        tool_call(page, folder)
        comparison(page, folder)
        load(site.url)
        page.set_viewport_size({"width": 1400, "height": 1060})
        ticks(page, site.url, folder / "page-ticks.png")
        dark = browser.new_page(**WIDE | {"color_scheme": "dark"})
        dark.goto(site.url)
        chat(dark, folder, "page-chat-dark.png")
        phone = browser.new_page(**PHONE)
        ticks(phone, site.url, folder / "page-ticks-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
