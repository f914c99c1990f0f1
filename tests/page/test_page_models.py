"""The menu of models in the header: how each is, loading and unloading, and getting one more."""

import json

import pytest
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

DISK = {
    "object": "list",
    "allowed": True,
    "data": [{"id": "hf://owner/repo/m.gguf", "size_bytes": 400_000_000}],
    "free_bytes": 2 * 10**9,
}


@pytest.fixture
def several():
    with Site(engines=("a", "b"), on_demand=("b",), n_slots=1) as site:
        yield site


def open_menu(page):
    page.get_by_role("button", name="Model menu").focus()
    page.keyboard.press("Enter")
    return page.get_by_role("dialog", name="Models")


def test_models_are_loaded_and_unloaded_from_any_view(several, make_page):
    page = make_page(several, "ticks")
    menu = open_menu(page)
    models = menu.get_by_role("list", name="Models").locator("> li")
    expect(models).to_have_count(2)
    expect(models.first).to_contain_text("loaded")
    expect(models.first).to_contain_text("4,096 tokens at most")
    expect(models.first).to_contain_text("reuses what it has read before (slots")
    expect(models.last).to_contain_text("not loaded: loads with the first request")
    menu.get_by_role("button", name="Load model-b").click()
    expect(menu.get_by_role("button", name="Unload model-b")).to_be_visible()
    menu.get_by_role("button", name="Unload model-b").click()
    expect(menu.get_by_role("button", name="Load model-b", exact=True)).to_be_visible()
    expect(menu.get_by_text("Get a model")).to_have_count(0)  # the server does not allow that
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(page.get_by_role("button", name="Model menu")).to_be_focused()


def test_the_menu_stops_no_answer_and_writes_no_message(make_page, site):
    page = make_page(site, "chat")
    page.get_by_label("Your message").fill("Tell me")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    menu = open_menu(page)
    expect(menu).to_be_visible()
    menu.get_by_role("heading", name="Models").click()
    page.keyboard.press("x")
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(page.get_by_label("Your message")).to_have_value("")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("button", name="Stop").click()


def test_a_model_is_fetched_with_its_progress_and_how_to_serve_it(make_page, site):
    page = make_page(site, "chat")
    steps = []

    def answer(route):
        if route.request.method == "GET":
            return route.fulfill(json=DISK)
        asked = json.loads(route.request.post_data)["model"]
        steps.append(asked)
        end = {"error": {"message": "model: there is none"}} if "none" in asked else {"model": asked}
        told = ({"step": "downloading m.gguf", "share": 0.25}, end)
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in told)
        return route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/downloads", answer)
    menu = open_menu(page)
    expect(menu.get_by_text("1 model on this machine, 400 MB; 2.00 GB free")).to_be_visible()
    field = menu.get_by_label("Model on the Hugging Face Hub")
    field.fill("hf://owner/none")
    page.keyboard.press("Enter")
    expect(menu.get_by_role("alert")).to_have_text("model: there is none")
    field.fill("hf://owner/repo:Q4_K_M")
    page.keyboard.press("Enter")
    expect(menu.get_by_role("status")).to_contain_text("cobali serve hf://owner/repo:Q4_K_M")
    assert steps == ["hf://owner/none", "hf://owner/repo:Q4_K_M"]
