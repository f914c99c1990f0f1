"""What a visitor does on the playground, and a voice that answers there."""

import time

from playwright.sync_api import expect

IDLE = "() => fetch('health').then((r) => r.json()).then((h) => h.engine.n_running === 0)"
"""Holds in a page once the engine runs nothing; to be given to `until`."""
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


def until(page, holds):
    """Wait for what a page promises to become true; Playwright's own wait takes the promise for the truth."""
    page.evaluate(f"""async () => {{
        const deadline = performance.now() + 60e3;
        while (!(await ({holds})())) {{
            if (performance.now() > deadline) throw new Error("not within 60 s");
            await new Promise((resolve) => setTimeout(resolve, 50));
        }}
    }}""")


def until_told(page, holds):
    """Wait for what this process hears of a page, such as a request of it, while the page goes on."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        page.evaluate("() => new Promise((next) => setTimeout(next, 20))")


def drawn(page):
    """Wait until what was clicked is drawn, which the page does once per frame: sooner than a hand types."""
    page.evaluate("() => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)))")


def answered(page):
    """Wait until the last answer has ended, at its length."""
    expect(page.get_by_role("article").last).to_contain_text("length")


def begin_new(page):
    """Begin a new conversation."""
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".asked")).to_have_count(0)


def more(page, title, action):
    """Do something with a conversation of the list, by its menu."""
    page.get_by_label(f"More about {title}").click()
    button(page, action).click()


def rename(page, title, name):
    more(page, title, "Rename")
    page.keyboard.type(name)
    page.keyboard.press("Enter")


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


SAID = "import('/ui/chat/library.js').then(({ current }) => current().messages.at(-1).text)"
"""The last answer as it came: what is shown of it is markdown."""
SAVED = "import('/ui/chat/library.js').then(({ saved }) => saved())"
"""Resolves once all that was said is kept."""


def kept(page):
    """Wait until an answer has ended and all that was said is kept, as before a page is loaded again."""
    page.get_by_role("button", name="Send", exact=True).wait_for()
    page.evaluate(SAVED)


def momentary(page):
    """Let what the page says for a moment stay, because this process may look later."""
    page.evaluate("""() => {
        const { setTimeout } = window;
        window.setTimeout = (call, ms, ...args) => ms >= 2000 || setTimeout(call, ms, ...args);
    }""")


def listed(page):
    """The conversations in the list."""
    return page.get_by_role("navigation", name="Conversations").locator(".conversation")


def open_tools(page, *names):
    """Open the tools among the settings, and offer some of the page's own."""
    open_settings(page)
    if not page.get_by_label("Add an MCP server").count():
        page.get_by_text("Tools", exact=True).click()
    for name in names:
        page.get_by_role("checkbox", name=name).check()


def open_settings(page):
    """Open the settings of a chat, which are closed at first; those of a comparison are open."""
    toggle = page.get_by_role("button", name="Settings", exact=True)
    if page.locator("main.view-chat").count() and toggle.get_attribute("aria-expanded") == "false":
        toggle.click()


def say(page, text, **settings):
    """Send a message; the chat's settings are opened for it, on a small screen as a drawer."""
    drawn(page)
    drawer = bool(settings) and page.viewport_size["width"] <= 900
    if settings:
        open_settings(page)
    for name, value in settings.items():
        page.locator(f"[name={name}]").fill(str(value))
    if drawer:
        page.keyboard.press("Escape")
        expect(page.locator(".panel-settings")).to_have_count(0)  # and the focus is back
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def compare(page, n, **settings):
    page.get_by_role("link", name="Compare").click()
    page.locator(".streams input").fill(str(n))
    say(page, "the same to all", **settings)


class Voice:
    """Answers a page's chats chunk by chunk, in place of its server."""

    def __init__(self, page):
        self._page = page
        page.evaluate("""() => {
            const { fetch } = window;
            const encoder = new TextEncoder();
            window.voice = { sent: [] };
            window.fetch = async (url, options) => {
                const gone = JSON.stringify({ error: { code: "stream_not_found", message: "none" } });
                if (String(url).includes("/v1/streams/")) return new Response(gone, { status: 404 });
                if (!String(url).endsWith("/v1/chat/completions")) return fetch(url, options);
                voice.sent.push(JSON.parse(options.body));
                return new Response(new ReadableStream({ start: (to) => {
                    const tell = (text) => to.enqueue(encoder.encode(`data: ${text}\\n\\n`));
                    voice.tell = tell;
                    options.signal.onabort = () => {
                        if (voice.tell === tell) delete voice.tell;
                        to.error(options.signal.reason);
                    };
                } }));
            };
        }""")

    @property
    def sent(self):
        """The bodies of the requests so far; a new one may come a moment after what asked for it."""
        return self._page.evaluate("voice.sent")

    def asked(self, n):
        """Wait for the `n`th request and return its body."""
        self._page.wait_for_function("(n) => voice.sent.length === n", arg=n)
        return self.sent[-1]

    def say(self, choice=0, **delta):
        self._tell({"choices": [{"index": choice, "delta": delta, "finish_reason": None}]})

    def call(self, index, name=None, arguments=""):
        function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
        self.say(tool_calls=[{"index": index, "function": function}])

    def finish(self, reason="stop", n_choices=1):
        """Say why the answers end; their numbers are still to come."""
        for choice in range(n_choices):
            self._tell({"choices": [{"index": choice, "delta": {}, "finish_reason": reason}]})

    def answer(self, text, reason="stop", **usage):
        """Say a whole text."""
        self.say(content=text)
        self.end(reason, **usage)

    def end(self, reason="stop", n_choices=1, **usage):
        self.finish(reason, n_choices)
        self._tell({"choices": [], "usage": usage})
        self._page.evaluate("voice.tell('[DONE]'), delete voice.tell")

    def _tell(self, chunk):
        self._page.wait_for_function("'tell' in voice")
        self._page.evaluate("(chunk) => voice.tell(JSON.stringify({ id: 'by-hand', ...chunk }))", chunk)
