"""Which of several engines the page shows beside a conversation."""

import re
import threading

import pytest
from hands import drawn, open_settings, say, until_told
from stack import Site

from cobali_ray.actors.model_host import ModelHost
from cobali_ray.errors import ConfigError

pytest.importorskip("playwright")
from playwright.sync_api import expect

APART = """([name, width]) => {
    const [engine, beside] = [".pill select", name].map(
        (one) => [...document.querySelectorAll(one)].at(-1).getBoundingClientRect(),
    );
    return innerWidth === width && engine.right <= beside.left;
}"""
"""In one look, because numbers beside it change their width."""


def chosen(page):
    """The engine in the header."""
    return page.locator(".pill").get_by_label("engine")


def choose(page, model):
    drawn(page)
    open_settings(page)
    page.get_by_role("combobox", name="Model").select_option(model)


def test_a_chat_shows_the_engine_of_its_conversations_model(make_page):
    with Site(engines=("a", "b"), n_slots=1, model="builtin:scripted:0.04") as site:
        page = make_page(site, "chat", allow=["ERR_"])
        expect(page.locator(".strip")).to_contain_text("Engine a (model-a) is idle")
        choose(page, "model-b")
        expect(page.get_by_role("heading", name="Chat with model-b")).to_be_visible()
        expect(page.locator(".strip")).to_contain_text("Engine b (model-b) is idle")
        say(page, "the first", max_tokens=3000)
        expect(page.locator(".pill")).to_contain_text("1 of 1 slot")
        expect(page.locator(".markdown")).to_be_visible()
        page.keyboard.press("Control+Shift+O")
        expect(chosen(page)).to_have_value("a")
        choose(page, "model-b")
        expect(chosen(page)).to_have_value("b")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.wait_for_function(APART, arg=[".pill > span:last-of-type", 1280])
        chosen(page).select_option("a")  # to have a look at it
        expect(page.locator(".strip")).to_contain_text("Engine a (model-a) is idle")
        say(page, "the second", max_tokens=20)
        expect(page.locator("p.waiting")).to_have_text("waiting for a slot, next in line …")
        expect(chosen(page)).to_have_value("b")
        page.keyboard.press("Control+Shift+O")
        expect(chosen(page)).to_have_value("a")
        page.get_by_role("navigation", name="Conversations").get_by_text("the second").click()
        expect(chosen(page)).to_have_value("b")
        expect(page.locator("p.waiting")).to_have_text("waiting for a slot, next in line …")


def test_the_engine_that_answers_is_shown_of_a_comparison_of_its_first_side(make_page):
    with Site(engines=("b-replica-0", "b-replica-1", "a"), model="builtin:scripted:0.04") as site:
        page = make_page(site, "compare", allow=["ERR_"])
        expect(page.locator(".strip")).to_contain_text("Engine b-replica-0 (model-b) is idle")
        choose(page, "model-a")
        expect(page.locator(".strip")).to_contain_text("Engine a (model-a) is idle")
        chosen(page).select_option("b-replica-1")  # to have a look at it
        expect(page.locator(".strip")).to_contain_text("Engine b-replica-1 (model-b) is idle")
        say(page, "the first", max_tokens=40)
        expect(page.locator(".meanwhile")).to_contain_text("engine a (model-a)")
        expect(page.locator(".measures")).to_be_visible()
        choose(page, "model-b")  # of the next one
        with page.expect_response("**/v1/chat/completions"):
            page.get_by_role("button", name="Run again").click()  # the old one
        expect(page.locator(".measures")).to_be_visible()
        expect(chosen(page)).to_have_value("a")
        site.kill_engine()  # the first of model-b, so that the other one has to answer
        say(page, "the second", max_tokens=3000)
        expect(page.locator(".meanwhile")).to_contain_text("engine b-replica-1 (model-b)")
        expect(page.locator(".pill")).to_contain_text("4 of 8 slots busy")
        page.get_by_role("button", name="Clear").click()
        page.get_by_role("button", name="Models").click()
        page.get_by_label("Left").select_option("model-a")
        expect(page.locator(".strip")).to_contain_text("Engine a (model-a) is idle")
        page.get_by_role("link", name="Chat").click()
        choose(page, "model-b")
        say(page, "hello", max_tokens=3000)
        expect(chosen(page)).to_have_value("b-replica-1")
        expect(page.locator(".pill")).to_contain_text("1 of 8 slots busy")
        page.set_viewport_size({"width": 390, "height": 844})  # where such a name is cut short
        page.wait_for_function(APART, arg=[".top button", 390])


def test_a_model_that_is_not_loaded_can_be_chosen_and_its_first_message_loads_it(make_page, monkeypatch):
    may_load = threading.Event()
    monkeypatch.setattr(ModelHost, "_check_room", lambda _: may_load.wait(60))
    with Site(engines=("a", "b"), on_demand=("b",)) as site:
        page = make_page(site, "chat", allow=["ERR_"])
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        choose(page, "model-b")
        settings = page.get_by_role("complementary", name="Settings")
        expect(settings).to_contain_text("Not loaded yet: loads with the first message.")
        expect(page.locator(".pill")).to_contain_text(re.compile("model-b.*not loaded"))
        expect(page.locator(".notice")).to_have_count(0)
        page.get_by_role("link", name="Live ticks").click()
        expect(page.get_by_role("heading", name="The model is not loaded yet")).to_be_visible()
        expect(page.get_by_role("main").get_by_role("link", name="Ask it something")).to_be_visible()
        card = page.get_by_role("group", name="Engines").get_by_role("button", name="engine b")
        expect(card).to_contain_text("model-b")
        expect(card).to_contain_text("not loaded yet: loads with the first request")
        until_told(page, lambda: any("debug/ticks" in url and "engine=a" in url for url in asked))
        assert not any("debug/ticks" in url and "engine=b" in url for url in asked), "it has none"
        page.get_by_role("link", name="Chat").click()
        say(page, "hello", max_tokens=20)
        expect(page.locator("p.waiting")).to_have_text("loading the model …")
        expect(settings).to_contain_text("loading the model")
        late = make_page(site, "ticks?engine=b", allow=["ERR_"])
        for one in (page, late):
            expect(one.locator(".pill")).to_contain_text("loading the model")
            expect(one.locator(".notice")).to_have_count(0)
        may_load.set()
        expect(late.get_by_role("region", name="Record of a tick")).to_be_visible()
        expect(page.locator(".numbers")).to_contain_text("length")
        expect(page.locator(".pill")).to_contain_text("0 of 8 slots busy")
        expect(settings).to_contain_text(re.compile(r"4,096 tokens at most"))


def test_a_model_that_cannot_be_loaded_is_told(make_page, monkeypatch):
    def damaged(_):
        raise ConfigError("model", "mine.gguf is damaged")

    monkeypatch.setattr(ModelHost, "_check_room", damaged)
    with Site(engines=("a", "b"), on_demand=("b",)) as site:
        page = make_page(site, "chat", allow=["ERR_", "500"])
        choose(page, "model-b")
        say(page, "hello")
        late = make_page(site, "ticks?engine=b", allow=["ERR_"])
        for one in (page, late):
            expect(one.locator(".pill")).to_contain_text("not loaded")
            expect(one.locator(".notice")).to_contain_text(
                "could not be loaded. model: mine.gguf is damaged. The next message to it tries again."
            )
        expect(late.get_by_role("heading", name="The model could not be loaded")).to_be_visible()
