"""What goes on around a visitor: keys, reconnects, long answers, small screens, many runs."""

import itertools
import re

import httpx2
import pytest
from hands import IDLE, Voice, compare, drawn, open_settings, say, until
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

LOCKED = {"status": 401, "json": {"error": {"message": "no", "type": "x", "code": "invalid_api_key"}}}


def enter(page, key):
    page.get_by_role("form", name="API key").get_by_label("API key").fill(key)
    page.keyboard.press("Enter")


@pytest.mark.thorough
def test_compare_counts_every_answer_by_itself_without_the_feed(make_page, site):
    page = make_page(site, "chat", allow=["404", "ERR_"])
    page.route("**/debug/**", lambda route: route.fulfill(status=404, json={}))
    page.reload()
    compare(page, 3, max_tokens=20)
    expect(page.locator(".together")).to_contain_text("3 answers ended")
    expect(page.locator(".together")).to_contain_text(re.compile(r"\b60 tokens in"))
    for answer in page.get_by_role("article").all():
        expect(answer).to_contain_text(re.compile(r"output\s*20.tok"))


def test_a_stopped_answer_counts_what_the_engine_counted(make_page, site):
    page = make_page(site, "chat")
    say(page, "a hot one", max_tokens=3000, temperature=3)  # so hot that characters take several tokens
    page.wait_for_function("() => document.querySelector('.answer .text')?.innerText.length > 200")
    page.get_by_role("button", name="Stop").click()
    until(page, IDLE)
    told = httpx2.get(f"{site.url}/debug/ticks").json()["requests"][-1]
    assert told["error"] == "RequestCancelledError"
    expect(page.get_by_role("article")).to_contain_text(re.compile(rf"output\s*{told['n_output']:,}.tok"))


def test_a_refused_message_has_no_count_of_an_answer_and_a_setting_that_cannot_be_is_not_sent(
    make_page, site
):
    page = make_page(site, "chat", allow=["400"])
    say(page, "far too long " * 4000)
    refused = page.get_by_role("article")
    expect(refused).to_contain_text("failed")
    expect(refused).not_to_contain_text("output")
    open_settings(page)
    page.locator("[name=temperature]").fill("-3")
    expect(page.locator("#temperature-hint")).to_have_text("at least 0; not sent")


def test_a_refused_key_covers_nothing_and_opens_the_page_once_it_is_valid(make_page, site):
    page = make_page(site, "chat", allow=["401", "ERR_"])
    for path in ("**/debug/**", "**/v1/**"):
        page.route(path, lambda route: route.fulfill(**LOCKED))
    page.reload()
    open_settings(page)
    form = page.get_by_role("form", name="API key")
    enter(page, "soon")
    expect(form).to_contain_text("refused")
    settings = page.locator(".settings")
    expect(settings).to_contain_text("Enter a valid key to see the models")
    tops = settings.evaluate("""(e) => [...e.querySelectorAll("header, .form > *")]
        .map((one) => one.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])""")
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(tops)), "nothing is covered"
    page.unroute_all()
    enter(page, "soon")
    expect(page.locator(".pill")).to_contain_text("of 8 slots busy")
    expect(form).to_have_count(0)
    expect(settings.locator("select")).to_have_value("scripted")


HISTORY = "import('/ui/feed/feed.js').then(({ feed }) => [feed.get().history, feed.get().status])"


def look_away(page, hidden):
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_what_happened_while_nobody_looked_is_fetched(make_page):
    with Site(model="builtin:scripted:0.001") as site:
        page = make_page(site, "chat", allow=["ERR_"])
        say(page, "before", max_tokens=10)
        expect(page.get_by_role("article")).to_contain_text("length")
        until(page, f"() => {HISTORY}.then(([history]) => history.lastId === 9)")
        look_away(page, True)
        until(page, f"() => {HISTORY}.then(([, status]) => status === 'asleep')")
        body = {"model": "scripted", "prompt": "x", "max_tokens": 1500, "ignore_eos": True}
        httpx2.post(f"{site.url}/v1/completions", json=body, timeout=60).raise_for_status()
        until(page, IDLE)
        look_away(page, False)
        until(page, f"() => {HISTORY}.then(([history]) => history.lastId >= 1509)")
        ids = page.evaluate(f"{HISTORY}.then(([history]) => history.ticks.map((tick) => tick.tick_id))")
        assert ids == list(range(ids[0], ids[-1] + 1)), "no hole"
        states = page.evaluate(f"{HISTORY}.then(([{{ requests }}]) => [...requests.values()])")
        assert [(r["state"], r["n_output"], "unseen" in r) for r in states] == [
            ("ended", 10, False),
            ("ended", 1500, False),
        ]


@pytest.mark.thorough
def test_forgotten_ticks_are_told_and_left(make_page, site):
    page = make_page(site, "chat")
    say(page, "many ticks", max_tokens=150)
    expect(page.get_by_role("article")).to_contain_text("length")
    page.get_by_role("link", name="Live ticks").click()
    record = page.get_by_role("region", name="Record of a tick")
    expect(record).to_contain_text("the newest")
    page.evaluate(
        """async () => {
            const { feed } = await import("/ui/feed/feed.js");
            const { view } = await import("/ui/plots/window.js");
            const { history } = feed.get();
            const end = history.firstId + 100;
            view.set({ axis: "ticks", span: { ticks: 60, time: 3 }, end: end + 0.5, pinned: end - 10 });
            history.ticks.splice(1, 120);
        }"""
    )
    told = page.locator(".forgotten")
    expect(told).to_contain_text("These ticks are no longer stored.")
    expect(record).to_contain_text("This tick is no longer stored.")
    told.get_by_role("button", name="Go live").click()
    expect(told).to_have_count(0)
    expect(record).to_contain_text("the newest")


IN_SIGHT = """() => {
    const [it, composer] = ["%s", ".composer"].map((name) => document.querySelector(name));
    return it.getBoundingClientRect().bottom < composer.getBoundingClientRect().top;
}"""


LATE_BLOCK = """() => {
    const { style } = document.querySelector(".answer"), from = scrollY;
    style.marginTop = "-60px";
    if (scrollY >= from) throw Error("it did not move");
    style.paddingTop = "900px";
}"""


def test_the_end_of_a_long_answer_stays_in_sight_unless_one_reads_above(make_page, site):
    page = make_page(site, "chat", viewport={"width": 500, "height": 420})
    voice = Voice(page)
    say(page, "long")

    def grow(n):
        voice.say(content="Many words. " * 60 + "\n\n")
        page.wait_for_function("(n) => document.querySelectorAll('.answer .text p').length === n", arg=n)
        drawn(page)

    grow(1)
    # What becomes smaller and then grows on its own, as a block whose library comes late, moves nobody away.
    page.evaluate(LATE_BLOCK)
    for n in (2, 3, 4):
        grow(n)
    until(page, IN_SIGHT % ".caret")
    page.evaluate("scrollTo(0, 0)")
    grow(5)
    assert page.evaluate("scrollY") == 0, "nobody who reads is pulled away"
    voice.end()


def test_the_numbers_and_buttons_that_come_with_the_end_of_an_answer_stay_in_sight(make_page, site):
    page = make_page(site, "chat", viewport={"width": 390, "height": 500})
    voice = Voice(page)
    say(page, "hello")
    voice.say(content="Many words. " * 60)
    expect(page.locator(".caret")).to_be_visible()
    voice.finish()
    expect(page.get_by_role("button", name="Copy answer")).to_be_visible()
    voice.end(prompt_tokens=9, completion_tokens=60, completion_tokens_details={"reasoning_tokens": 9})
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    until(page, IN_SIGHT % ".answer .actions")


def test_a_stream_beside_others_is_read_from_above_in_peace(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    compare(page, 6)
    words = page.locator(".grid .text").first
    voice.say(content="Many words. " * 200)
    page.wait_for_function("() => document.querySelector('.grid .text')?.scrollTop > 40")
    before = words.evaluate("(element) => ((element.scrollTop = 0), element.scrollHeight)")
    voice.say(content="Many words. " * 60)
    grown = "(before) => document.querySelector('.grid .text').scrollHeight > before + 40"
    page.wait_for_function(grown, arg=before)
    drawn(page)
    assert words.evaluate("(element) => element.scrollTop") == 0
    voice.end(n_choices=6)


@pytest.mark.thorough
def test_asking_again_does_not_wait_for_a_comparison_and_keeps_what_is_written(make_page, site):
    page = make_page(site, "chat")
    say(page, "first", max_tokens=5)
    expect(page.get_by_role("article")).to_contain_text("length")
    compare(page, 2, max_tokens=3000)
    expect(page.locator(".caret").first).to_be_visible()
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Your message").fill("half a thought")
    page.locator("[name=max_tokens]").fill("7")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("article")).to_contain_text(re.compile(r"output\s*7.tok"))
    expect(page.locator(".asked")).to_have_text("You: first")
    expect(page.get_by_label("Your message")).to_have_value("half a thought")
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Stop").click()
    until(page, IDLE)
