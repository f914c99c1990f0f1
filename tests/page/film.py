"""Take the README's moving picture: `python tests/page/film.py docs/live-ticks.webp`.

Live ticks of the built-in chat model with eight streams, while a long prompt arrives; in this process. It
needs a Chromium (`make browser`).
"""

import io
import sys
import threading
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from screenshots import LONG, SETTINGS, ask
from stack import Site

from conftest import CHROMIUM

N_STREAMS = 8
BEFORE_S, AFTER_S = 1.5, 6.0
"""Of the picture, before and after the long prompt is sent."""
FRAME_S = 0.15
WIDTH = 1000
MARGIN = 14


def film(page, prompt):
    """Return frames and when each was taken; `prompt` is called on the way."""
    frames, taken, sent = [], [], False
    started = time.monotonic()
    while (at := time.monotonic() - started) < BEFORE_S + AFTER_S:
        if at > BEFORE_S and not sent:
            sent = prompt() or True
        box, last = page.locator(".stage").bounding_box(), page.locator(".lanes").bounding_box()
        clip = {"x": box["x"] - MARGIN, "y": box["y"], "width": box["width"] + 2 * MARGIN}
        clip["height"] = last["y"] + last["height"] + MARGIN - box["y"]
        frames.append(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB"))
        taken.append(at)
        time.sleep(max(0, FRAME_S - (time.monotonic() - started - at)))
    return frames, taken


def main():
    settings = SETTINGS | {"n_slots": N_STREAMS + 1, "itl_target_ms": 80}
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/live-ticks.webp")
    with (
        Site(**settings) as site,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.goto(f"{site.url}/#ticks")

        def begin(text, max_tokens=3000):
            threading.Thread(target=ask, args=(site.url, text, max_tokens), daemon=True).start()

        for number in range(N_STREAMS):
            begin(f"Tell me a story, number {number}.")
        page.wait_for_function("() => Number(document.querySelector('.cursor')?.ariaValueNow) > 150")
        frames, taken = film(page, lambda: begin(LONG * 85, 60))
        browser.close()
    size = (WIDTH, round(frames[0].height * WIDTH / frames[0].width))
    frames = [frame.resize(size, Image.Resampling.LANCZOS) for frame in frames]
    lasts_ms = [
        round(1000 * (after - at)) for at, after in zip(taken, [*taken[1:], taken[-1] + 1.5], strict=True)
    ]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=lasts_ms, loop=0, quality=70, method=6
    )


if __name__ == "__main__":
    main()
