"""An answer is not lost by looking away: it goes on after a reload, in a second tab, after a cut."""

import re

import httpx2
import pytest
from hands import IDLE, SAID, SAVED, answered, listed, more, say, until, until_told
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

LENGTH = 40

KEPT = """async () => {
    const { readAll } = await import("/ui/chat/shelf.js");
    return (await readAll()).some(({ messages }) => messages.at(-1).text);
}"""


def text_of(page):
    return page.get_by_role("article").last.locator(".text")


def begin(page, question):
    """Ask for an answer, of which something is here and kept then; the site holds the rest back."""
    say(page, question, temperature=0, max_tokens=LENGTH)
    expect(page.locator(".asked").last).to_have_text(f"You: {question}")
    expect(text_of(page)).not_to_be_empty()
    page.evaluate(SAVED)


def whole(site, question):
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": LENGTH}
    response = httpx2.post(f"{site.url}/v1/chat/completions", json=body).raise_for_status()
    return response.json()["choices"][0]["message"]["content"]


def expect_whole(site, page, question):
    answered(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert page.evaluate(SAID) == whole(site, question)


def test_a_reload_loses_neither_the_answer_nor_the_draft(make_page, site):
    page = make_page(site, "chat")
    with site.held(20):
        begin(page, "Reloaded")
        page.get_by_label("Your message").fill("not sent yet")
        page.reload()
        expect(text_of(page)).not_to_be_empty()
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        expect(page.get_by_label("Your message")).to_have_value("not sent yet")
        assert site.n_running() == 1, "it is the same answer"
    expect_whole(site, page, "Reloaded")


@pytest.mark.thorough
def test_a_reload_before_the_first_token_loses_nothing(make_page, site):
    page = make_page(site, "chat")
    with site.held(0):
        say(page, "Waiting", temperature=0, max_tokens=LENGTH)
        until(page, "() => fetch('health').then((r) => r.json()).then((h) => h.engine.n_running === 1)")
        page.reload()
        expect(page.get_by_role("article")).to_contain_text(re.compile("waiting|reading the prompt"))
        assert site.n_running() == 1
    expect_whole(site, page, "Waiting")


def test_two_tabs_follow_one_answer_and_either_can_stop_it(make_page, site):
    page = make_page(site, "chat")
    with site.held(20):
        begin(page, "Followed")
        other = page.context.new_page()
        other.goto(page.url)
        expect(text_of(other)).not_to_be_empty()
        expect(other.get_by_role("button", name="Stop")).to_be_visible()
    for tab in (page, other):
        expect_whole(site, tab, "Followed")
    other.close()
    with site.held(20):
        begin(page, "Stopped elsewhere")
        other = page.context.new_page()
        other.goto(page.url)
        expect(text_of(other)).not_to_be_empty()
        other.get_by_role("button", name="Stop").click()
    for tab in (other, page):
        expect(tab.get_by_role("article").last).to_contain_text("stopped by you")
        expect(tab.get_by_role("alert")).to_have_count(0)
    until(page, IDLE)
    other.close()


def test_a_conversation_that_another_tab_deletes_is_not_answered_to_its_end_and_stays_deleted(
    make_page, site
):
    page = make_page(site, "chat")
    with site.held(20):
        begin(page, "Gone elsewhere")
        other = page.context.new_page()
        other.goto(f"{site.url}/#chat/new")
        more(other, "Gone elsewhere", "Delete")
        expect(page.locator(".asked")).to_have_count(0)
        until(
            page,
            "() => import('/ui/chat/talk.js').then((m) => !Object.keys(m.running.get().messages).length)",
        )
        page.evaluate(SAVED)
        for tab in (page, other):
            expect(listed(tab)).to_have_count(0)
        assert not page.evaluate("import('/ui/chat/shelf.js').then(({ readAll }) => readAll())")
    until(page, IDLE)
    other.close()


def test_the_time_of_a_continued_answer_is_from_when_it_was_continued(make_page, site):
    page = make_page(site, "chat")
    begin(page, "Longer")
    answered(page)
    page.evaluate("""async () => {
        const { change, current } = await import("/ui/chat/library.js");
        const earlier = (message) => ({ ...message, atMs: message.atMs - 3600e3 });
        await change(current().id, (was) => ({ ...was, messages: was.messages.map(earlier) }));
    }""")
    with site.held(20):
        page.get_by_role("button", name="Continue").click()
        until(page, "() => fetch('health').then((r) => r.json()).then((h) => h.engine.n_running === 1)")
        page.evaluate(SAVED)
        page.reload()
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        elapsed_s = page.evaluate("""async () => {
            const { current } = await import("/ui/chat/library.js");
            const { answerOf } = await import("/ui/chat/talk.js");
            return performance.now() / 1000 - answerOf(current().messages.at(-1)).get().sentS;
        }""")
    assert 0 <= elapsed_s < 1800
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_an_answer_is_read_on_once_the_network_is_back(make_page, site):
    page = make_page(site, "chat", allow=["ERR_"])
    with site.held(20):
        begin(page, "Cut off")
        page.route("**/v1/streams/**", lambda route: route.abort())
        site.cut()
        article = page.get_by_role("article")
        expect(article).to_contain_text("The server does not answer. This answer continues as")
        page.unroute("**/v1/streams/**")
        expect(article).to_contain_text("The connection was lost; the answer continued after")
        assert site.n_running() == 1
    expect_whole(site, page, "Cut off")


def test_an_answer_that_the_server_has_no_longer_says_so_and_can_be_continued(make_page, site):
    page = make_page(site, "chat", allow=["404"])
    with site.held(20):
        begin(page, "Forgotten")
        until(page, KEPT)
        page.goto("about:blank")
        site.forget_streams()
        page.goto(site.url)
        expect(page.get_by_role("alert")).to_contain_text("The server no longer has this answer")
        expect(text_of(page)).not_to_be_empty()
        expect(page.get_by_role("button", name="Continue")).to_be_visible()


AT_ONCE = """
data: {"id": "a", "choices": [{"index": 0, "delta": {"content": "At once."}, "finish_reason": null}]}

data: {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

data: [DONE]

"""


@pytest.mark.thorough
def test_an_answer_that_ended_before_it_was_drawn_is_not_read_on(make_page, site):
    page = make_page(site, "chat")
    stream = {"content_type": "text/event-stream", "body": AT_ONCE}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**stream))
    read = []
    page.on("request", lambda request: "/v1/streams/" in request.url and read.append(request.url))
    for n in range(1, 9):
        say(page, f"Question {n}")
        expect(page.get_by_role("article")).to_have_count(n)
        expect(page.get_by_role("article").last).to_contain_text("At once.")
    assert read == []


def test_a_restart_of_the_engine_is_told_where_one_looks_and_survived(make_page):
    """In the answer itself, and wherever no answer is in sight under the header."""
    with Site(model="builtin:scripted:0.04") as site:  # for two minutes, in which all of this is looked at
        page = make_page(site, "chat", allow=["500", "503", "ERR_"])
        say(page, "interrupted", temperature=0, max_tokens=3000)
        expect(text_of(page)).not_to_be_empty()
        site.kill_engine()
        article = page.get_by_role("article")
        expect(article.get_by_role("status")).to_have_text(
            "The engine is restarting. This answer continues when it is back."
        )
        notice = page.locator("main > [role=status]")
        expect(notice).to_be_empty()
        page.get_by_role("link", name="Live ticks").click()
        expect(notice).to_contain_text("The engine is being restarted")
        expect(page.locator(".pill")).to_contain_text("restarting")
        site.revive_engine()
        expect(notice).to_contain_text("The engine was restarted")
        expect(notice).to_contain_text("the answers that it was writing go on")
        expect(page.locator(".pill")).to_contain_text("1 of 8 slots busy")  # the answer goes on
        row = page.get_by_role("region", name="Table of requests").get_by_role("row").nth(1)
        life = page.get_by_role("region", name="Life of a request")

        def is_followed():
            """Choose it, again if need be: the view is drawn after the pill, and forgets the old run's."""
            if (choice := row.get_by_role("button")).get_attribute("aria-pressed") == "false":
                choice.click()
            return "Continued" in life.inner_text()

        until_told(page, is_followed)
        expect(life).to_contain_text(re.compile(r"Continued\s*after \d+ tokens"))
        expect(life).not_to_contain_text("Tenant")
        page.get_by_role("button", name="Close this notice").click()
        page.get_by_role("link", name="Chat").click()
        expect(article).to_contain_text(re.compile(r"restarted; the answer continued after \d"))
        expect(notice).to_be_empty()
        page.get_by_role("button", name="Stop").click()
        expect(article).to_contain_text("stopped by you")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_back_and_forward_lead_through_conversations(make_page, site):
    page = make_page(site, "chat")
    expect(page).to_have_url(re.compile("#chat/new$"))
    addresses = {}
    for n, question in enumerate(("First", "Second")):
        if n:
            page.keyboard.press("Control+Shift+O")
            expect(page).to_have_url(re.compile("#chat/new$"))
        say(page, question, max_tokens=3)
        answered(page)
        expect(page).to_have_url(re.compile("#chat/[0-9a-f]{24}$"))
        addresses[question] = page.url
    page.go_back()
    expect(page).to_have_url(addresses["First"])
    expect(page.locator(".asked")).to_have_text("You: First")
    page.go_forward()
    expect(page.locator(".asked")).to_have_text("You: Second")
    page.get_by_role("link", name="Compare").click()
    page.go_back()
    expect(page.locator(".asked")).to_have_text("You: Second")
    page.goto("about:blank")
    page.goto(addresses["First"])
    expect(page.locator(".asked")).to_have_text("You: First")
    page.goto(f"{site.url}/#chat/{'0' * 24}")
    expect(page.get_by_role("alert")).to_contain_text("does not have the conversation")


def test_the_prompt_has_the_focus_at_the_beginning_and_on_any_letter(make_page, site):
    page = make_page(site, "chat")
    prompt = page.get_by_label("Your message")
    expect(prompt).to_be_focused()
    page.locator("h2").first.click()
    page.get_by_role("button", name="New chat", exact=True).focus()
    expect(prompt).not_to_be_focused()
    page.keyboard.type("abc")
    expect(prompt).to_be_focused()
    expect(prompt).to_have_value("abc")
    page.get_by_label("Search").focus()
    page.keyboard.type("def")
    expect(page.get_by_label("Search")).to_have_value("def")
    expect(prompt).to_have_value("abc")
