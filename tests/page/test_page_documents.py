"""PDF and DOCX become text in the browser; a chat becomes a file that shows it and can be opened again."""

import base64
import zipfile

import pytest
from documents import docx, pdf
from hands import Voice, kept, listed, more, say

pytest.importorskip("playwright")
from playwright.sync_api import expect

READ = """async (module, [kind, data]) => {
    const read = { pdf: module.textOfPdf, docx: module.textOfDocx }[kind];
    const bytes = Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0));
    try { return await read(bytes, `x.${kind}`); } catch (error) { return `Error: ${error.message}`; }
}"""
REPORT = """
<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr><w:r><w:t>Results</w:t></w:r></w:p>
<w:p><w:pPr><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr>
  <w:r><w:t>Two </w:t></w:r><w:r><w:t>&amp; three</w:t><w:tab/><w:t>four</w:t></w:r>
  <w:del><w:delText>gone</w:delText></w:del></w:p>
<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>a point</w:t></w:r></w:p>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc>
  <w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
"""
SCAN = "Error: x.pdf contains no text. Its pages may be scanned images."
NO_DOCX = "Error: x.docx is not a DOCX file that can be read."
PLAIN = "<w:p><w:r><w:t>Plain</w:t></w:r></w:p>"


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        pytest.param("pdf", pdf("Hello \\(there\\)", "Page two"), "Hello (there)\n\nPage two", id="pages"),
        pytest.param("pdf", pdf(""), SCAN, id="scan"),
        pytest.param("pdf", b"%PDF-1.4 cut", "Error: x.pdf is not a PDF that can be read.", id="broken-pdf"),
        pytest.param("docx", docx(REPORT), "## Results\n\nTwo & three\tfour\n\n- a point\na | b", id="word"),
        pytest.param("docx", docx(PLAIN, zipfile.ZIP_STORED), "Plain", id="stored"),
        pytest.param("docx", docx(PLAIN) + bytes(99), "Plain", id="bytes-behind"),
        pytest.param("docx", docx(""), "Error: x.docx contains no text.", id="empty"),
        pytest.param("docx", docx(REPORT)[:200], NO_DOCX, id="broken-docx"),
    ],
)
def test_documents_become_text(of, kind, data, text):
    assert of(f"chat/{kind}.js", READ, [kind, base64.b64encode(data).decode()]) == text


def test_a_question_about_a_pdf_carries_its_text(make_page, site, tmp_path):
    (tmp_path / "Report.PDF").write_bytes(pdf("The gulls were seventeen."))
    page = make_page(site, "chat")
    page.get_by_label("Files to attach").set_input_files(tmp_path / "Report.PDF")
    expect(page.get_by_role("list", name="Attached files")).to_contain_text("Report.PDF")
    voice = Voice(page)
    say(page, "How many gulls?")
    assert voice.asked(1)["messages"][0]["content"] == (
        "How many gulls?\n\nFile Report.PDF:\n\n```pdf\nThe gulls were seventeen.\n```"
    )
    voice.end()


def test_a_shared_file_shows_the_chat_by_itself_and_is_opened_again(make_page, site, browser, tmp_path):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "Of <b>tags</b> & lamps")
    voice.say(content="**Bold** </script><script>document.title = 'run'</script>\n\n")
    voice.say(content="| a | b |\n|---|---|\n| 1 | 2 |\n\n- [x] done\n- [ ] $e^x$\n")
    voice.end()
    kept(page)
    page.get_by_role("button", name="New chat", exact=True).click()
    page.reload()  # what draws formulas has not been fetched
    title = "Of <b>tags</b> & lamps"
    with page.expect_download() as download:
        more(page, title, "Share as a file")
    assert download.value.suggested_filename == "Of-b-tags-b-lamps.html"
    download.value.save_as(tmp_path / "shared.html")

    alone = browser.new_page(java_script_enabled=True)
    asked = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto((tmp_path / "shared.html").as_uri())
    expect(alone).to_have_title(title)
    expect(alone.locator(".asked")).to_have_text(title)
    expect(alone.locator("strong")).to_have_text("Bold")
    expect(alone.get_by_role("cell", name="2")).to_be_visible()
    assert [box.is_checked() for box in alone.get_by_role("checkbox").all()] == [True, False]
    expect(alone.locator("math")).to_be_visible()
    expect(alone.locator(".katex-html")).to_have_count(0)
    assert len(asked) == 1
    alone.close()

    more(page, title, "Delete")
    expect(listed(page)).to_have_count(0)
    page.get_by_label("File to import").set_input_files(tmp_path / "shared.html")
    listed(page).click()
    expect(page.get_by_role("article")).to_contain_text("Bold </script>")
    (tmp_path / "other.html").write_text("<!doctype html><p>Hello")
    page.get_by_label("File to import").set_input_files(tmp_path / "other.html")
    expect(page.get_by_role("alert")).to_contain_text("This page contains no conversation.")
