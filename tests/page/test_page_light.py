"""What the live ticks take of the machine that also computes the model."""

import pytest
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

MOST_PER_S = 3
"""Times that any canvas is drawn, while eight streams get a token in each of ten ticks a second: 2.5 to 3."""
N_TICKS = 40

ASK = """(body) => void fetch("v1/completions", {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" },
}).catch(() => {})"""
LATER = """(n) => import("/ui/feed/feed.js").then(({ feed }) => new Promise((done) => {
    const last = feed.get().history.lastId + n;
    const unwatch = feed.watch(() => feed.get().history.lastId >= last && (unwatch(), done()));
}))"""


DRAWN = """() => {
    const { prototype } = CanvasRenderingContext2D, { clearRect } = prototype;
    const drawn = (window.drawn = new Map());
    prototype.clearRect = function (...args) {
        drawn.set(this.canvas, (drawn.get(this.canvas) ?? 0) + 1);
        return clearRect.apply(this, args);
    };
}"""
COUNTED = "() => [performance.now() / 1000, ...drawn.values()]"


def test_eight_streams_leave_the_machine_to_the_model(make_page):
    """Counts what is drawn: how long it takes, 0.03 s a second, depends on what else the machine does."""
    with Site(model="builtin:scripted:0.1") as site:
        page = make_page(site, "ticks", allow=["ERR_"])
        expect(page.locator(".pill")).to_contain_text("0 of 8 slots busy")
        page.evaluate(ASK, {"prompt": "go on", "n": 8, "max_tokens": 3000, "ignore_eos": True})
        expect(page.locator(".pill")).to_contain_text("8 of 8 slots busy")
        expect(page.get_by_role("img", name="Tokens of each tick")).to_be_visible()
        page.evaluate(DRAWN)
        page.evaluate(LATER, N_TICKS // 4)  # what is done once is over
        begin, *before = page.evaluate(COUNTED)
        page.evaluate(LATER, N_TICKS)
        end, *after = page.evaluate(COUNTED)
    n_drawn = [now - was for was, now in zip(before, after, strict=True)]
    assert len(n_drawn) >= 4  # plots
    most = MOST_PER_S * (end - begin) + 1  # one more fits between two looks
    assert all(0 < n < most for n in n_drawn), (n_drawn, most)
