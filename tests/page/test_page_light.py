"""What the live ticks take of the machine that also computes the model."""

import pytest
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

MOST_S = 0.05
"""Of the page's main thread per second, while eight streams get a token in each of ten ticks per second."""
N_TICKS = 40

ASK = """(body) => void fetch("v1/completions", {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" },
}).catch(() => {})"""
LATER = """(n) => import("/ui/feed/feed.js").then(({ feed }) => new Promise((done) => {
    const last = feed.get().history.lastId + n;
    const unwatch = feed.watch(() => feed.get().history.lastId >= last && (unwatch(), done()));
}))"""


def test_eight_streams_leave_the_machine_to_the_model(make_page):
    """Counts processor time, which other work on the machine does not lengthen as it does the clock's."""
    with Site(model="builtin:scripted:0.1") as site:
        page = make_page(site, "ticks", allow=["ERR_"])
        expect(page.locator(".pill")).to_contain_text("0 of 8 slots busy")
        page.evaluate(ASK, {"prompt": "go on", "n": 8, "max_tokens": 3000, "ignore_eos": True})
        expect(page.locator(".pill")).to_contain_text("8 of 8 slots busy")
        expect(page.get_by_role("img", name="Tokens of each tick")).to_be_visible()
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})

        def measured():
            return {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}

        def after(n_ticks):
            page.evaluate(LATER, n_ticks)
            return measured()

        before = after(N_TICKS // 4)  # what is done once is over
        now = after(N_TICKS)
        spent = {name: now[name] - before[name] for name in now if name.endswith("Duration")}
        seconds = now["Timestamp"] - before["Timestamp"]
    assert spent["TaskDuration"] > 0
    assert spent["TaskDuration"] / seconds < MOST_S, (seconds, spent)
