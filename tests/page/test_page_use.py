"""What goes on around a visitor: keys, reconnects, long answers, small screens, many runs."""

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


def test_a_key_that_has_become_valid_opens_the_page(make_page, site):
    page = make_page(site, "chat", allow=["401", "ERR_"])
    for path in ("**/debug/**", "**/v1/**"):
        page.route(path, lambda route: route.fulfill(**LOCKED))
    page.reload()
    open_settings(page)
    form = page.get_by_role("form", name="API key")
    enter(page, "soon")
    expect(form).to_contain_text("refused")
    expect(page.locator(".settings")).to_contain_text("Enter a valid key to see the models")
    page.unroute_all()
    enter(page, "soon")
    expect(page.locator(".pill")).to_contain_text("of 8 slots busy")
    expect(form).to_have_count(0)
    expect(page.locator(".settings select")).to_have_value("scripted")


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
        page.evaluate(
            """(body) => fetch("v1/completions", {
                method: "POST",
                headers: { "content-type": "application/json" },
                body: JSON.stringify(body),
            }).then((response) => response.text())""",
            {"model": "scripted", "prompt": "x", "max_tokens": 1500, "ignore_eos": True},
        )
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


def test_the_end_of_a_long_answer_stays_in_sight_unless_one_reads_above(make_page, site):
    page = make_page(site, "chat", viewport={"width": 500, "height": 420})
    voice = Voice(page)
    say(page, "long")

    def grow(n):
        voice.say(content="Many words. " * 60 + "\n\n")
        page.wait_for_function("(n) => document.querySelectorAll('.answer .text p').length === n", arg=n)
        drawn(page)

    grow(1)
    # What grows on its own, such as a block whose library comes late, moves nobody away from the end.
    page.evaluate("document.querySelector('.answer').style.paddingTop = '900px'")
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
    compare(
        page, 6, max_tokens=2500
    )  # the more there are, the narrower the cards, and the sooner one is full
    words = page.locator(".grid .text").first
    page.wait_for_function("() => document.querySelector('.grid .text')?.scrollTop > 40")
    before = words.evaluate("(element) => ((element.scrollTop = 0), element.scrollHeight)")
    grown = "(before) => document.querySelector('.grid .text').scrollHeight > before + 40"
    page.wait_for_function(grown, arg=before)
    assert words.evaluate("(element) => element.scrollTop") == 0
    page.get_by_role("button", name="Stop").click()
    until(page, IDLE)


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


def test_of_several_engines_one_is_chosen_and_shown(make_page):
    with Site(engines=("a", "b")) as site:
        page = make_page(site, "chat", allow=["ERR_"])
        open_settings(page)
        page.get_by_role("combobox", name="Model").select_option("model-b")
        say(page, "to the second", max_tokens=20)
        expect(page.get_by_role("article")).to_contain_text("length")
        engines = page.locator(".pill").get_by_label("engine")
        expect(engines).to_have_value("b")
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 800})
            box, beside = engines.bounding_box(), page.locator(".top button").last.bounding_box()
            assert box["x"] + box["width"] <= beside["x"]
        page.set_viewport_size({"width": 1280, "height": 800})
        box, beside = engines.bounding_box(), page.locator(".pill > span").last.bounding_box()
        assert box["x"] + box["width"] <= beside["x"]
        page.keyboard.press("Control+Shift+O")
        strip = page.locator(".strip")
        expect(strip).to_contain_text("Engine a (model-a) is idle")
        engines.select_option("b")
        expect(page.locator(".pill .model")).to_have_text("model-b")
        expect(strip).to_contain_text("Engine b (model-b) is idle")
        engines.select_option("a")
        page.get_by_role("link", name="Live ticks").click()
        expect(page.locator("main")).to_contain_text("has not done anything yet")
        expect(engines).to_be_hidden()  # the cards are the choice here
        cards = page.get_by_role("group", name="Engines").get_by_role("button")
        expect(cards).to_have_text(
            [re.compile(rf"model-{id_}engine {id_} · 0 of 8 slots busy") for id_ in "ab"]
        )
        for width in (1280, 390):  # side by side, and as wide as each other
            page.set_viewport_size({"width": width, "height": 800})
            one, other = [card.bounding_box() for card in cards.all()]
            assert (one["y"], one["width"]) == (other["y"], pytest.approx(other["width"]))
        page.set_viewport_size({"width": 1280, "height": 800})
        cards.last.click()
        expect(page.locator(".pill .model")).to_have_text("model-b")
        expect(page.get_by_role("img", name="Tokens of each tick")).to_be_visible()
        page.get_by_role("button", name="Time", exact=True).click()
        cards.first.click()
        expect(cards.first).to_have_attribute("aria-pressed", "true")
        cards.last.click()
        expect(page.get_by_role("button", name="Time", exact=True)).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_role("region", name="Table of requests")).to_contain_text("length")
