"""Conversations that are kept: listed, found, named, deleted, exported, imported; files and settings."""

import json
import re

import pytest
from axe import violations
from hands import Voice, answered, begin_new, kept, listed, more, open_tools, rename, say

pytest.importorskip("playwright")
from playwright.sync_api import expect


def converse(page, *questions):
    """Hold a conversation for each question, and wait until it is kept."""
    for n, question in enumerate(questions):
        if n:
            begin_new(page)
        say(page, question, max_tokens=5, temperature=0)  # of other answers Markdown makes anything
        answered(page)
        expect(listed(page).first).to_have_text(question)


def test_conversations_survive_a_reload_and_are_found_named_and_deleted(make_page, site):
    page = make_page(site, "chat")
    expect(page.get_by_text("stored in this browser only")).to_be_visible()
    converse(page, "Of lamps and sailors", "Of sums")
    expect(page.get_by_label("Keep conversations on the server")).to_have_count(0)  # which has no store
    answer = page.get_by_role("article").locator(".text").inner_text()
    page.reload()
    expect(listed(page)).to_have_text(["Of sums", "Of lamps and sailors"])
    expect(page.locator(".asked")).to_have_text("You: Of sums")
    expect(page.get_by_role("article").locator(".text")).to_have_text(answer)
    expect(page.get_by_role("article").locator(".numbers")).to_contain_text(re.compile(r"output\s*5.tok"))

    page.keyboard.press("Control+k")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type(answer[:4].upper())  # of what was answered, and however it is written
    expect(listed(page)).to_have_text([re.compile("^Of sums")])  # and the words around what was found
    page.get_by_label("Search").fill("lamps")
    expect(listed(page)).to_have_text([re.compile("^Of lamps and sailors")])
    listed(page).first.click()
    expect(page.locator(".asked")).to_have_text("You: Of lamps and sailors")
    page.get_by_label("Search").fill("")

    rename(page, "Of lamps and sailors", "The sea")
    expect(listed(page)).to_have_text(["The sea", "Of sums"])
    more(page, "Of sums", "Delete")
    expect(listed(page)).to_have_text(["The sea"])
    page.get_by_role("button", name="Undo").click()
    expect(listed(page)).to_have_text(["The sea", "Of sums"])
    more(page, "The sea", "Delete")
    expect(page.locator(".asked")).to_have_count(0)
    page.reload()
    expect(listed(page)).to_have_text(["Of sums"])


def test_conversations_leave_as_files_and_come_back(make_page, site, tmp_path):
    page = make_page(site, "chat")
    converse(page, "One # of two", "Two of two")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    download.value.save_as(tmp_path / "all.json")
    with page.expect_download() as download:
        more(page, "One # of two", "Export as Markdown")
    assert download.value.suggested_filename == "One-of-two.md"
    assert (
        download.value.path()
        .read_text()
        .startswith("# One # of two\n\n## You\n\nOne # of two\n\n## scripted\n\n")
    )

    def bring(path):
        page.get_by_label("File to import").set_input_files(path)
        return page.locator(".list .told").last

    expect(bring(tmp_path / "all.json")).to_have_text("Imported 0 conversations, 2 were here already.")
    for title in ("One # of two", "Two of two"):
        more(page, title, "Delete")
        expect(page.get_by_label(f"More about {title}")).to_have_count(0)
    expect(bring(tmp_path / "all.json")).to_have_text("Imported 2 conversations.")
    expect(listed(page)).to_have_text(["Two of two", "One # of two"])
    listed(page).last.click()
    expect(page.locator(".asked")).to_have_text("You: One # of two")

    whole = json.loads((tmp_path / "all.json").read_text())
    del whole["conversations"][1]["messages"][1]["text"]
    (tmp_path / "bad.json").write_text(json.dumps(whole))
    told = bring(tmp_path / "bad.json")
    expect(told).to_have_text(
        "bad.json was not imported. Conversation 2, message 2: text is missing or invalid."
    )
    expect(listed(page)).to_have_count(2)


HOLD = """() => {
    const { prototype } = BroadcastChannel;
    const { postMessage } = prototype;
    const held = [];
    prototype.postMessage = function (data) { held.push([this, data]); };
    window.tell = () => {
        prototype.postMessage = postMessage;
        for (const [channel, data] of held) channel.postMessage(data);
    };
}"""
"""Hold back what a tab tells the others, until `tell()`: both send before either hears of the other."""


def test_two_tabs_lose_nothing_of_one_another(make_page, site):
    page = make_page(site, "chat")
    converse(page, "Begun here")
    other = page.context.new_page()
    other.goto(f"{site.url}/#chat")
    listed(other).first.click()
    expect(other.locator(".asked")).to_have_text("You: Begun here")
    for tab, text in ((page, "from the first"), (other, "from the second")):
        tab.get_by_label("Your message").fill(text)
    page.evaluate(HOLD)
    for tab in (page, other):
        tab.get_by_label("Your message").press("Enter")
    expect(other.locator(".asked")).to_have_count(2)
    page.evaluate("tell()")
    for tab, text in ((page, "from the first"), (other, "from the second")):
        expect(tab.get_by_role("article").last).to_contain_text("length")
        expect(tab.locator(".asked").last).to_have_text(f"You: {text}")
        expect(tab.get_by_role("group", name="Versions of this message")).to_contain_text("/2")
    other.close()
    page.reload()
    page.get_by_role("button", name=re.compile("Version (before|after)")).and_(
        page.locator(":enabled")
    ).click()
    expect(page.locator(".asked").last).to_contain_text("from the")
    expect(page.get_by_role("article")).to_have_count(2)


def test_what_cannot_be_kept_is_said(make_page, site):
    page = make_page(site, "chat")
    page.evaluate("""async () => {
        const { readAll } = await import("/ui/chat/shelf.js");
        await readAll();
        const db = await new Promise((resolve) => {
            indexedDB.open("cobali").onsuccess = (event) => resolve(event.target.result);
        });
        const store = db.transaction("conversations", "readwrite").objectStore("conversations");
        for (let i = 0; i < 1000; i += 1)
            store.put({ id: `${i}`, title: `${i}`, changedMs: i, titledMs: 0, messages: [], settings: {} });
        await new Promise((resolve) => { store.transaction.oncomplete = resolve; });
        db.close();
    }""")
    say(page, "one too many", max_tokens=5)
    alert = page.locator(".talk > .notice")
    expect(alert).to_contain_text(
        "Not stored: 1000 conversations are stored already. Delete some to store this one."
    )
    answered(page)  # the chat itself goes on
    page.evaluate("""() => {
        IDBObjectStore.prototype.count = function () {
            const { transaction } = this;
            const full = new DOMException("", "QuotaExceededError");
            Object.defineProperty(transaction, "error", { value: full });
            transaction.abort();
            return {};
        };
    }""")
    say(page, "and no room")
    expect(alert).to_contain_text("This browser has no more room for conversations.")


def test_settings_belong_to_a_conversation(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "in verse", temperature=0.25)
    voice.end()
    assert "max_tokens" not in voice.sent[0], "nothing that is pre-filled cuts an answer"
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("[name=temperature]")).to_have_value("")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_role("button", name="Use for new chats").click()
    listed(page).first.click()
    expect(page.locator("[name=temperature]")).to_have_value("0.25")
    expect(page.get_by_label("System prompt")).to_have_value("")
    kept(page)
    page.reload()
    expect(page.locator("[name=temperature]")).to_have_value("0.25")
    page.get_by_role("button", name="New chat", exact=True).click()
    voice = Voice(page)
    say(page, "hello")
    voice.end()
    assert voice.sent[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "temperature" not in voice.sent[0]


def test_text_files_go_with_a_message_and_others_are_refused(make_page, site):
    page = make_page(site, "chat", allow=["400"], viewport={"width": 390, "height": 740})
    files = page.get_by_label("Files to attach")
    name = "a_rather_long_name_of_a_file_for_such_a_phone.py"
    files.set_input_files({"name": name, "mimeType": "text/x-python", "buffer": b"print('``` no end')\n"})
    chip = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(chip).to_have_text(re.compile(rf"{name}\s*20.B, \d+ tokens"))
    fits = "document.documentElement.scrollWidth === innerWidth"
    assert page.evaluate(fits)
    for other, kind, data, told in (
        ("b.bin", "", b"\x00\x01\xff", "b.bin is not text in UTF-8. Text, PDF and DOCX can be attached."),
        ("c.txt", "text/plain", b"w" * 4200, "c.txt is too long: the model reads 4,096 tokens at most."),
        ("d.txt", "text/plain", b"w" * 80_000, "d.txt is too long: 80.0"),
        ("e.png", "image/png", b"\x89PNG", "e.png is an image, and scripted reads only text."),
        ("f.txt", "text/plain", b"", "f.txt is empty."),
    ):
        files.set_input_files({"name": other, "mimeType": kind, "buffer": data})
        expect(page.locator(".refusal")).to_contain_text(told)
    page.evaluate("""() => {
        const transfer = new DataTransfer();
        transfer.items.add(new File(["dropped"], "notes.txt", { type: "text/plain" }));
        const event = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
        document.querySelector(".talk").dispatchEvent(event);
    }""")
    expect(chip).to_have_count(2)
    expect(page.locator(".refusal")).to_have_count(0)
    page.get_by_role("button", name="Remove notes.txt").click()
    expect(chip).to_have_count(1)
    voice = Voice(page)
    say(page, "What does it print?")
    expect(chip).to_have_count(1)  # with the message now
    assert voice.asked(1)["messages"][0]["content"] == (
        f"What does it print?\n\nFile {name}:\n\n````py\nprint('``` no end')\n````"
    )
    voice.end()
    assert page.evaluate(fits), "the chip in the message too"


def test_the_list_and_its_forms_are_accessible(make_page, site):
    page = make_page(site, "chat")
    converse(page, "Something to list")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".versions")).to_have_text("2/2")
    expect(page.get_by_role("button", name="Regenerate")).to_be_enabled()
    page.get_by_label("More about").click()
    assert not violations(page), "with a menu open"
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Edit", exact=True).click()
    open_tools(page)
    assert not violations(page), "with forms open"


def test_the_settings_close_and_open_again(make_page, site):
    page = make_page(site, "chat", viewport={"width": 390, "height": 740})
    opener = page.get_by_role("button", name="Settings", exact=True)
    settings = page.get_by_role("complementary", name="Settings")
    for width in (390, 1440):  # on a phone it is a drawer
        page.set_viewport_size({"width": width, "height": 740})
        expect(settings).to_have_count(0)
        opener.click()
        expect(settings.get_by_label("System prompt")).to_be_visible()
        settings.get_by_role("button", name="Close settings").click()
        expect(settings).to_have_count(0)
        expect(opener).to_be_focused()


def test_on_a_phone_the_list_is_a_drawer(make_page, site):
    phone = {"viewport": {"width": 390, "height": 740}, "is_mobile": True, "has_touch": True}
    page = make_page(site, "chat", allow=["ERR_"], **phone)
    say(page, "a very long title that will not fit into the drawer of a telephone at all", max_tokens=5)
    answered(page)
    page.get_by_role("button", name="Conversations", exact=True).tap()
    drawer = page.get_by_role("region", name="Conversations")
    expect(drawer).to_be_focused()
    assert not violations(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    drawer.get_by_label("More about").tap()
    expect(page.get_by_role("button", name="Delete")).to_be_in_viewport()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    opener = page.get_by_role("button", name="Conversations", exact=True)
    opener.tap()
    drawer.get_by_role("button", name="Close conversations").tap()
    expect(drawer).to_have_count(0)
    expect(opener).to_be_focused()
    opener.tap()
    drawer.get_by_label("More about").tap()
    drawer.get_by_role("button", name="Delete").tap()
    expect(drawer.get_by_role("button", name="Undo")).to_be_visible()
    expect(page.get_by_label("Your message")).not_to_be_focused()  # which is behind the drawer
    page.get_by_role("button", name="New chat").tap()
    expect(drawer).to_have_count(0)
    expect(page.locator(".asked")).to_have_count(0)
