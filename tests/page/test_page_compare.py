"""The comparison: streams, two models, two settings; its numbers, its difference, what one takes away."""

import json
import re
from pathlib import Path

import pytest
from axe import violations
from hands import IDLE, compare, momentary, say, until, until_told
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

CHATS = "**/v1/chat/completions"
LEFT = "The quick brown fox jumps over the lazy dog."
RIGHT = "The slow brown fox leaps over the lazy dog, twice."
NUMBERS = {
    "intake_s": 0.001, "queue_s": 0.002, "prefill_s": 0.01, "decode_s": 0.5, "e2e_s": 0.6,
    "ttft_s": 0.02, "itl_p50_s": 0.01, "itl_p99_s": 0.03, "itl_max_s": 0.04, "tokens_per_second": 50.0,
}  # fmt: skip


def choose(page, kind):
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("region", name="What to compare").get_by_role("button", name=kind).click()


def overhearing(page):
    """Return a list that fills with the page's requests and how the server's streams ended."""
    heard = []

    def listen(route):
        response = route.fetch()
        events = [event for event in response.text().split("\n\n") if event.startswith("data: {")]
        heard.append((route.request.post_data_json, json.loads(events[-1][6:])))
        route.fulfill(response=response)

    page.route(CHATS, listen)
    return heard


def cells(page):
    """The table of numbers: the names of its sides, and per measure what each has."""
    head, *rows = page.locator(".measures tr").all()
    found = [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]
    names = [row.locator("th").inner_text() for row in rows]
    return [cell.inner_text() for cell in head.locator("th").all()][1:], dict(zip(names, found, strict=True))


def shown(of, told, usage):
    """What the table has to say of timings."""
    counts = {
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }
    write = "({ MEASURES, formatted }, told) => MEASURES.map((m) => [m.label, formatted(m, told[m.name])])"
    return dict(of("compare/measures.js", write, counts | told | {"finish": "length"}))


def answering(page, *answers):
    """Answer a page's chats by hand: each with a text and changes to the numbers. Return what it asks."""
    asked, left = [], list(answers)

    def answer(route):
        asked.append(route.request.post_data_json)
        text, changes = left[(len(asked) - 1) % len(left)]
        usage = {"prompt_tokens": 9, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage, "timings": NUMBERS | changes},
        ]
        wire = [f"data: {json.dumps({'id': f'by-hand-{len(asked)}'} | chunk)}\n\n" for chunk in chunks]
        route.fulfill(content_type="text/event-stream", body="".join([*wire, "data: [DONE]\n\n"]))

    page.route(CHATS, answer)
    return asked


def test_streams_have_numbers_of_their_own_and_they_are_the_servers(make_page, site, of):
    page = make_page(site, "compare")
    expect(page.get_by_role("button", name="Models")).to_be_disabled()
    expect(page.get_by_text("Comparing models needs two models; this server has one.")).to_be_visible()
    heard = overhearing(page)
    compare(page, 3, max_tokens=20)
    expect(page.locator(".measures")).to_be_visible()
    ((_, told),) = heard
    took = of("parts/format.js", "({ duration }, s) => duration(s)", told["timings"]["e2e_s"])
    expect(page.locator(".together")).to_have_text(re.compile(rf"60 tokens in {took}\s*Run again$"))
    names, table = cells(page)
    assert names == ["Stream 1", "Stream 2", "Stream 3"]
    for i, choice in enumerate(told["timings"]["choices"]):
        assert choice["completion_tokens"] == 20
        expected = shown(of, choice, told["usage"])
        assert {name: row[i].removesuffix(" best") for name, row in table.items()} == expected
    expect(page.locator(".difference")).to_have_count(0)
    page.get_by_role("button", name="Show the difference").click()
    other = page.get_by_role("region", name="Difference").get_by_role("combobox").last
    other.select_option("Stream 3")
    expect(page.locator(".difference del").first).to_contain_text("only in Stream 1")
    expect(page.locator(".difference ins").first).to_contain_text("only in Stream 3")
    other.select_option("Stream 1")
    expect(page.locator(".difference")).to_contain_text("Both answers say the same.")


def test_two_models_answer_the_same_prompt(make_page, of):
    with Site(engines=("a", "b")) as site:
        page = make_page(site, "compare", allow=["ERR_"])
        choose(page, "Models")
        page.get_by_label("Left").select_option("model-b")
        expect(page.get_by_label("Right")).to_have_value("model-a")
        heard = overhearing(page)
        say(page, "the same to both", max_tokens=12, top_k=5)
        expect(page.locator(".measures")).to_be_visible()
        asked = [body.pop("model") for body, _ in heard]
        assert sorted(asked) == ["model-a", "model-b"]
        assert heard[0][0] == heard[1][0]
        names, table = cells(page)
        assert names == ["model-b", "model-a"]
        for model, (_, told) in zip(asked, heard, strict=True):
            column = {name: row[names.index(model)].removesuffix(" better") for name, row in table.items()}
            assert column == shown(of, told["timings"], told["usage"])
        expect(page.locator(".meanwhile")).to_contain_text("engine b (model-b). Every stream on it adds")
        page.reload()
        expect(page.get_by_label("Left")).to_have_value("model-b")


def test_two_settings_differ_in_what_was_chosen_and_in_nothing_else(make_page, site):
    page = make_page(site, "compare")
    changed = {"ttft_s": 0.01, "itl_p50_s": 0.0104, "tokens_per_second": 40.0}
    asked = answering(page, (LEFT, {}), (RIGHT, changed))
    choose(page, "Settings")
    page.locator(".change.temperature input").fill("0.1")
    page.get_by_label("Let B differ in one more setting").select_option("System prompt")
    page.locator(".change textarea").fill("You are a pirate.")
    say(page, "what?", max_tokens=20, temperature=0)
    expect(page.locator(".measures")).to_be_visible()
    one, other = asked
    assert (one.pop("temperature"), other.pop("temperature")) == (0, 0.1)
    assert other["messages"].pop(0) == {"role": "system", "content": "You are a pirate."}
    assert one == other
    names, table = cells(page)
    assert names == [
        "A · system prompt none, temperature 0",
        "B · system prompt You are a pirate., temperature 0.1",
    ]
    assert [table["TTFT"], table["Tokens per second"]] == [
        ["20.0\u202fms", "10.0\u202fms better"],
        ["50.0 better", "40.0"],
    ]
    assert table["ITL, median"] == ["10.0\u202fms", "10.4\u202fms"], "four per cent may be chance"
    assert table["Output tokens"] == ["10", "10"]

    words = page.get_by_role("region", name="Text with differences")
    assert [mark.inner_text() for mark in words.locator("del").all()] == ["quick", "jumps"]
    assert [mark.inner_text() for mark in words.locator("ins").all()] == ["slow", "leaps", ", twice"]
    assert words.inner_text() == "The quick slow brown fox jumps leaps over the lazy dog, twice."
    page.get_by_role("button", name="Show the difference").click()
    expect(words).to_have_count(0)

    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert [side["answer"]["text"] for side in saved["sides"]] == [LEFT, RIGHT]
    assert saved["sides"][1]["numbers"]["ttft_s"] == 0.01
    assert saved["sides"][1]["request"]["temperature"] == 0.1
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    momentary(page)
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "| TTFT | 20.0\u202fms | 10.0\u202fms (better) |" in copied
    assert copied.endswith(f"\n\n{RIGHT}\n")

    page.get_by_role("button", name="Run again").click()
    until_told(page, lambda: len(asked) == 4)
    assert asked[2]["temperature"] == 0, "the same requests"
    expect(page.locator(".measures")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Your message")).to_have_value("what?")
    expect(page.locator(".change textarea")).to_have_value("You are a pirate.")
    page.get_by_role("button", name="System prompt: as in A").click()
    expect(page.locator(".change")).to_have_count(1)


@pytest.mark.thorough
def test_stopped_answers_have_what_the_feed_knows(make_page, site):
    page = make_page(site, "compare")
    compare(page, 2, max_tokens=3000)
    page.wait_for_function("() => document.querySelector('.answer .text')?.innerText.length > 50")
    page.keyboard.press("Escape")
    until(page, IDLE)
    expect(page.locator(".measures")).to_contain_text("from the engine's ticks")
    _, table = cells(page)
    assert table["Finish"] == ["stopped by you"] * 2
    assert table["Longest gap"] == ["\u2013"] * 2
    expect(page.locator(".measures tr", has_text="Output tokens")).to_contain_text(re.compile(r"\d\d"))


@pytest.mark.thorough
def test_it_works_by_keyboard_alone(make_page, site):
    page = make_page(site, "compare")
    expect(page.get_by_role("button", name="Settings")).to_be_visible()

    def tab_to(locator, key="Tab"):
        for _ in range(40):
            page.keyboard.press(key)
            if locator.evaluate("(element) => element === document.activeElement"):
                return
        pytest.fail(f"no way to {locator} by Tab")

    setup = page.get_by_role("region", name="What to compare")
    tab_to(setup.get_by_role("button", name="Settings"))
    page.keyboard.press("Enter")
    tab_to(setup.get_by_label("Temperature", exact=True))
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("2")
    tab_to(page.get_by_label("Your message"))
    page.keyboard.type("the same to both")
    page.keyboard.press("Enter")
    expect(page.locator(".caret").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".measures")).to_be_visible()
    tab_to(page.get_by_role("button", name="Show the difference"), "Shift+Tab")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Show the difference")).to_have_attribute("aria-pressed", "false")


def test_it_is_accessible_and_fits_a_phone(make_page, site):
    page = make_page(site, "compare", viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    answering(page, (LEFT, {}), (RIGHT, {"ttft_s": 0.01}))
    choose(page, "Settings")
    page.get_by_label("Let B differ in one more setting").select_option("System prompt")
    say(page, "what?")
    expect(page.get_by_role("region", name="Text with differences")).to_be_visible()
    left, right = [answer.bounding_box() for answer in page.locator(".grid .answer").all()]
    assert right["y"] >= left["y"] + left["height"], "one above the other"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not violations(page)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        pytest.param("a b", "a b", [["a b"]], id="same"),
        pytest.param("a  b", "a\nb", [["a  b"]], id="space-does-not-count"),
        pytest.param("a b c", "a x c", [["a "], ["b ", "x "], ["c"]], id="changed"),
        pytest.param("b", "a b c", [["", "a "], ["b "], ["", "c"]], id="added-at-both-ends"),
        pytest.param("a", "", [["a", ""]], id="nothing-left"),
        pytest.param("我喜欢猫", "我喜欢狗", [["我喜欢"], ["猫", "狗"]], id="words-without-spaces"),
    ],
)
def test_what_differs_is_found_word_by_word(of, left, right, expected):
    found = of("compare/diff.js", "({ differenceOf }, [a, b]) => differenceOf(a, b)", [left, right])
    assert found["by"] == "word"
    parts = [
        [part["same"]] if "same" in part else [part["removed"], part["added"]] for part in found["parts"]
    ]
    assert parts == expected


def test_long_texts_are_compared_by_line_and_too_long_ones_not_at_all(of):
    def compare(n, change):
        lines = [f"line {i} with words of its own: {i * 7919}" for i in range(n)]
        return of(
            "compare/diff.js",
            "({ differenceOf }, [a, b]) => differenceOf(a, b)",
            ["\n".join(lines), "\n".join(change(line) for line in lines)],
        )

    one = compare(900, lambda line: line.replace("line 4", "row 4").replace("1", "one"))
    assert one["by"] == "line"
    assert sum(part.get("n", 0) for part in one["parts"]) > 100
    assert compare(2500, lambda line: line + "!") is None
