"""Take the pictures of docs/page.md: `python tests/page/screenshots.py docs`.

The built-in chat model under a seeded load, in this process; needs a Chromium (`make browser`).
"""

import random
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx2
from conftest import CHROMIUM
from playwright.sync_api import expect, sync_playwright
from stack import Site

SETTINGS = {
    "model": "builtin:tiny",
    "n_slots": 12,
    "n_ctx": 2048,
    "n_threads": 1,
    "prefill_chunk": 64,
    "token_budget": 96,
    "itl_target_ms": 40,
    "log_level": "error",
}
PREFACE = "You are a careful assistant that answers briefly and says what it does not know. "
WORDS = [
    "slot",
    "tick",
    "batch",
    "token",
    "prompt",
    "queue",
    "cache",
    "prefix",
    "stream",
    "answer",
    "model",
    "engine",
]


def keep_busy(url, stop, number):
    """Send one request after another, with pauses."""
    rng = random.Random(number)
    with httpx2.Client(timeout=60) as http:
        while not stop.is_set():
            text = PREFACE * rng.choice([1, 1, 4]) + " ".join(rng.choices(WORDS, k=rng.randint(10, 160)))
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(40, 400)}
            with suppress(httpx2.HTTPError):
                http.post(f"{url}/v1/chat/completions", json=body | {"ignore_eos": True})
            stop.wait(rng.uniform(0, 0.6))


def take(page, site, scheme, folder):
    """Take both views in one colour scheme."""
    page.goto(f"{site.url}/#playground")
    page.locator("[name=max_tokens]").fill("700")
    page.locator("[name=temperature]").fill("0.7")
    page.get_by_role("button", name="Compare").click()
    page.locator(".streams input").fill("4")
    page.get_by_label("Your message").fill("Write a short story about a lighthouse.")
    page.keyboard.press("Enter")
    expect(page.locator(".together")).to_contain_text("ended", timeout=60_000)
    page.screenshot(path=folder / f"page-playground-{scheme}.png")

    page.get_by_role("link", name="Live ticks").click()
    page.wait_for_function("() => Number(document.querySelector('.cursor')?.ariaValueNow) > 300")
    lanes = page.locator(".lanes")
    box = lanes.bounding_box()
    lanes.click(position={"x": box["width"] * 0.72, "y": box["height"] * 0.13})
    page.mouse.move(2, 2)
    page.screenshot(path=folder / f"page-ticks-{scheme}.png")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    stop = threading.Event()
    with Site(**SETTINGS) as site, sync_playwright() as playwright:
        for number in range(9):
            threading.Thread(target=keep_busy, args=(site.url, stop, number), daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme, height in (("light", 1060), ("dark", 1060)):
            size = {"width": 1400, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
            take(page, site, scheme, folder)
            page.close()
        browser.close()
        stop.set()


if __name__ == "__main__":
    main()
