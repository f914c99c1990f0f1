"""Finding and lining up: pinned conversations, where a search led, messages that wait their turn."""

import pytest
from hands import SAVED, Voice, answered, begin_new, listed, more, open_settings, say

pytest.importorskip("playwright")
from playwright.sync_api import expect


def test_a_search_shows_the_words_and_leads_to_them_and_pins_come_first(make_page, site):
    page = make_page(site, "chat", viewport={"width": 1200, "height": 500})
    voice = Voice(page)
    for n, (question, text) in enumerate((("Of boats", "filler\n\n" * 40), ("Of lamps", "Short"))):
        if n:
            begin_new(page)
        say(page, question)
        voice.answer(f"It begins with an albatross here. {text}")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
    kept, rows = page.get_by_role("navigation", name="Conversations"), listed(page)
    expect(rows).to_have_text(["Of lamps", "Of boats"])
    more(page, "Of boats", "Pin")
    expect(rows).to_have_text(["Of boats", "Of lamps"])
    expect(kept.get_by_role("heading").first).to_have_text("Pinned")
    page.reload()
    expect(rows).to_have_text(["Of boats", "Of lamps"])
    page.get_by_label("Search").fill("ALBATROSS")
    expect(kept.locator("mark")).to_have_text(["albatross", "albatross"])
    expect(rows.first.locator("small")).to_contain_text("It begins with an albatross here. filler")
    rows.first.click()
    expect(page.locator(".asked")).to_have_text("You: Of boats")
    expect(page.get_by_role("article")).to_be_in_viewport()
    page.get_by_label("Search").fill("")
    more(page, "Of boats", "Unpin")
    expect(rows).to_have_text(["Of lamps", "Of boats"])


def test_messages_wait_their_turn_while_an_answer_comes(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "First")
    voice.say(content="One")
    for text in ("Second", "Third", "Never"):
        say(page, text)
        expect(page.get_by_label("Your message")).to_have_value("")
    waiting = page.get_by_role("list", name="Sent after this answer").get_by_role("listitem")
    expect(waiting).to_have_text(["Second", "Third", "Never"])
    waiting.last.get_by_role("button", name="Do not send").click()
    voice.end()
    assert [m["content"] for m in voice.asked(2)["messages"]] == ["First", "One", "Second"]
    expect(waiting).to_have_text(["Third"])
    voice.say(content="Two")
    page.get_by_role("button", name="Stop").click()  # whoever stops does not want the next one at once
    expect(waiting).to_contain_text(["Third"])
    page.get_by_role("button", name="Send now").click()
    voice.asked(3)
    expect(waiting).to_have_count(0)
    voice.answer("Three")
    expect(page.get_by_role("article").last).to_contain_text("Three")


def test_a_duplicated_tab_sends_nothing_that_waits_in_the_first(make_page, site):
    page = make_page(site, "chat")

    def names(*tabs):
        return [tab.evaluate("import('/ui/chat/draft.js').then(({ TAB }) => TAB)") for tab in tabs]

    with site.held(20):
        for text in ("First", "Second"):
            say(page, text, max_tokens=40, temperature=0)
            expect(page.get_by_label("Your message")).to_have_value("")
        page.evaluate(SAVED)
        with page.expect_popup() as popup:
            page.evaluate("() => void open(location.href)")
        other = popup.value
        expect(other.locator(".asked")).to_have_text("You: First")
        for tab, n in ((page, 1), (other, 0)):
            waiting = tab.get_by_role("list", name="Sent after this answer").get_by_role("listitem")
            expect(waiting).to_have_count(n)
        first, second = names(page, other)
        assert first != second
    for tab in (page, other):
        expect(tab.locator(".asked")).to_have_text(["You: First", "You: Second"])
        answered(tab)
        tab.reload()
        expect(tab.locator(".asked")).to_have_count(2)
    assert names(page, other) == [first, second], "each keeps its name"


def test_settings_are_saved_under_a_name_taken_again_and_carried_as_a_file(make_page, site, tmp_path):
    page = make_page(site, "chat")
    open_settings(page)
    temperature = page.get_by_label("Temperature")
    temperature.fill("0.7")
    page.get_by_text("Presets", exact=True).click()
    page.get_by_label("Name of the preset").fill("Warm")
    page.keyboard.press("Enter")
    saved = page.get_by_role("list", name="Presets")
    expect(saved).to_contain_text("Warm")
    temperature.fill("0")
    page.reload()
    page.get_by_text("Presets", exact=True).click()
    with page.expect_download() as download:
        page.locator(".presets").get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "presets.json")
    page.get_by_role("button", name="Delete the preset Warm").click()
    expect(saved).to_have_count(0)
    page.get_by_label("Presets to import").set_input_files(tmp_path / "presets.json")
    saved.get_by_role("button", name="Warm", exact=True).click()
    expect(temperature).to_have_value("0.7")
    (tmp_path / "bad.json").write_text('{"format": "another"}')
    page.get_by_label("Presets to import").set_input_files(tmp_path / "bad.json")
    expect(page.locator(".presets [role=status]")).to_contain_text("This file holds no presets")
