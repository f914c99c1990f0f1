"""Conversations on the server: the same in two browsers, and answers that go on without a page."""

import json
import re

import httpx2
import pytest
from hands import IDLE, SAID, SAVED, answered, begin_new, drawn, listed, more, rename, say, until, until_told
from stack import Site

pytest.importorskip("playwright")
from playwright.sync_api import expect

LENGTH = 40
SWITCH = "Keep conversations on the server"
KEPT_HERE = "import('/ui/chat/shelf.js').then(async ({ readAll }) => (await readAll()).length)"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Site(data_dir=tmp_path_factory.mktemp("store")) as site:
        yield site


@pytest.fixture
def keeping(server):
    """A server that keeps conversations, and has none yet."""
    yield server
    chats = f"{server.url}/v1/chats"
    for one in httpx2.get(chats).json()["data"]:
        httpx2.delete(f"{chats}/{one['id']}")


@pytest.fixture
def two(make_page, keeping):
    """Two browsers that keep their conversations on the server."""
    pages = [make_page(keeping, "chat", allow=["404", "409", "ERR_"]) for _ in range(2)]
    for page in pages:
        page.get_by_label(SWITCH).check()
        expect(page.get_by_text("They are stored on the server")).to_be_visible()
    return pages


def asked(page):
    return page.locator(".asked")


def ask(page, question):
    say(page, question, temperature=0, max_tokens=LENGTH)
    expect(asked(page).last).to_have_text(f"You: {question}")
    answered(page)


def test_two_browsers_have_the_same_conversation_and_both_go_on_with_it(two):
    phone, desktop = two
    ask(phone, "Of two browsers")
    expect(listed(desktop)).to_have_text(["Of two browsers"])
    listed(desktop).click()
    expect(asked(desktop)).to_have_text("You: Of two browsers")
    answered(desktop)
    assert desktop.evaluate(SAID) == phone.evaluate(SAID)
    ask(desktop, "From the desktop")
    expect(asked(phone)).to_have_text(["You: Of two browsers", "You: From the desktop"])
    answered(phone)
    rename(phone, "Of two browsers", "Named on the phone")
    expect(listed(desktop)).to_have_text(["Named on the phone"])
    desktop.reload()
    expect(asked(desktop)).to_have_count(2)
    assert desktop.evaluate(KEPT_HERE) == 0, "nothing is left in the browser"
    more(desktop, "Named on the phone", "Delete")
    expect(listed(phone)).to_have_count(0)


@pytest.mark.thorough
def test_neither_of_two_writers_overwrites_the_other(two):
    phone, desktop = two
    ask(phone, "Both write")
    listed(desktop).click()
    expect(asked(desktop)).to_have_count(1)
    for page in two:  # neither hears of the other before both have written
        page.route("**/v1/chats?after=*", lambda route: route.abort())
    say(phone, "Said on the phone", max_tokens=3)
    say(desktop, "Said on the desktop", max_tokens=3)
    for page in two:
        expect(asked(page)).to_have_count(2)
        answered(page)
        page.unroute("**/v1/chats?after=*")
    for page in two:
        page.reload()
        expect(asked(page)).to_have_count(2)
        until(
            page,
            """async () => {
            const { current } = await import("/ui/chat/library.js");
            const texts = current().messages.map(({ text }) => text);
            return texts.includes("Said on the phone") && texts.includes("Said on the desktop");
        }""",
        )
        expect(page.get_by_text(re.compile("[12] / 2|[12]/2")).first).to_be_visible()


def test_an_answer_goes_on_when_its_browser_is_closed_and_is_whole_in_another(two, keeping):
    phone, desktop = two
    with keeping.held(20):
        say(phone, "The lid closes", temperature=0, max_tokens=LENGTH)
        expect(phone.get_by_role("article").last.locator(".text")).not_to_be_empty()
        expect(listed(desktop)).to_have_text(["The lid closes"])
        phone.goto("about:blank")
    until(desktop, IDLE)
    keeping.forget_streams()  # as it is after five minutes
    listed(desktop).click()
    answered(desktop)
    whole = desktop.evaluate(SAID)
    assert len(whole) == LENGTH, "a character for each token"
    phone.goto(keeping.url)
    answered(phone)
    assert phone.evaluate(SAID) == whole
    for page in two:
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_stream_is_let_go_once_its_answer_is_whole_and_written(two, keeping):
    page, _ = two
    let_go = []
    page.on("request", lambda r: r.method == "DELETE" and let_go.append(r.url.rsplit("/", 1)[1]))

    def refuse(route):
        if route.request.method == "DELETE":
            route.continue_()
        else:
            route.fulfill(status=409, body=json.dumps({"error": {"message": "Not now.", "type": "x"}}))

    page.route("**/v1/streams/**", refuse)
    with keeping.held(20):
        say(page, "Given up here", temperature=0, max_tokens=LENGTH)
        expect(page.get_by_role("article").locator(".text")).not_to_be_empty()
        keeping.cut()
        expect(page.get_by_role("alert")).to_contain_text("Not now.")
    page.route("**/v1/chats/*", lambda route: route.abort())
    ask(page, "Not written")
    expect(page.get_by_text("Not stored: The server does not answer.")).to_be_visible()
    page.unroute("**/v1/chats/*")
    ask(page, "Whole")
    until_told(page, lambda: let_go)
    assert let_go == [page.evaluate(SAID.replace(".text", ".stream.id"))]


def test_an_answer_out_of_sight_goes_on_when_its_conversation_moves_to_the_server(make_page, keeping):
    page = make_page(keeping, "chat", allow=["404", "409"])
    with keeping.held(20):
        say(page, "Out of sight", temperature=0, max_tokens=LENGTH)
        expect(page.get_by_role("article").locator(".text")).not_to_be_empty()
        begin_new(page)
        expect(page.get_by_label("answering")).to_have_count(1)
        page.get_by_label(SWITCH).check()
        expect(page.get_by_text("They are stored on the server")).to_be_visible()
        expect(listed(page)).to_have_text(["Out of sight"])
    expect(page.get_by_label("answering")).to_have_count(0)
    page.evaluate(SAVED)
    keeping.forget_streams()
    listed(page).click()
    answered(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert len(page.evaluate(SAID)) == LENGTH


def kept_on(server):
    return [one for one in httpx2.get(f"{server.url}/v1/chats").json()["data"] if not one.get("deleted")]


def test_a_conversation_that_another_browser_deleted_is_not_written_again(two, keeping):
    phone, desktop = two
    ask(phone, "Gone elsewhere")
    expect(listed(desktop)).to_have_text(["Gone elsewhere"])
    phone.route("**/v1/chats?after=*", lambda route: route.abort())  # it does not hear of it
    more(desktop, "Gone elsewhere", "Delete")
    until_told(desktop, lambda: not kept_on(keeping))
    more(phone, "Gone elsewhere", "Pin")
    expect(listed(phone)).to_have_count(0)
    expect(asked(phone)).to_have_count(0)
    assert kept_on(keeping) == []


def test_a_conversation_is_deleted_after_what_was_being_written_of_it(two):
    page, _ = two
    late, methods = [], []

    def hold(route):
        methods.append(route.request.method)
        if methods == ["POST"]:
            late.append(route)
        else:
            route.continue_()

    page.route("**/v1/chats/*", hold)
    say(page, "Deleted at once", max_tokens=3)
    until_told(page, lambda: late)
    page.evaluate("() => void import('/ui/chat/library.js').then((m) => m.discard(m.current().id))")
    expect(asked(page)).to_have_count(0)
    drawn(page)
    assert methods == ["POST"]
    with page.expect_request_finished(lambda r: r.method == "DELETE" and "/v1/chats/" in r.url) as deletion:
        late[0].continue_()
    assert deletion.value.response().status == 200, "it was there"


def test_what_the_server_could_not_take_is_written_when_it_answers_again(two):
    phone, _ = two
    ask(phone, "Before the cut")
    phone.route("**/v1/chats/*", lambda route: route.abort())
    rename(phone, "Before the cut", "Named in a tunnel")
    expect(phone.get_by_role("alert")).to_contain_text("Not stored: The server does not answer.")
    phone.unroute("**/v1/chats/*")
    phone.reload()
    for page in two:
        expect(listed(page)).to_have_text(["Named in a tunnel"])


def test_the_switch_moves_the_browsers_conversations_and_leaves_others_theirs(make_page, keeping):
    page = make_page(keeping, "chat")
    ask(page, "From this browser")
    page.get_by_label(SWITCH).check()
    expect(page.get_by_text("everybody who can reach it can read them")).to_be_visible()
    expect(listed(page)).to_have_text(["From this browser"])
    expect(asked(page)).to_have_text("You: From this browser")
    until(page, f"() => {KEPT_HERE}.then((n) => n === 0)")
    page.get_by_label(SWITCH).uncheck()
    expect(listed(page)).to_have_count(0)
    page.get_by_label(SWITCH).check()
    expect(listed(page)).to_have_text(["From this browser"])


def test_each_key_has_its_own_shelf(make_page, tmp_path):
    with Site(data_dir=tmp_path, api_keys=["first", "second"]) as site:
        page = make_page(site, "chat", allow=["401"])

        def use(key):
            page.evaluate("(key) => import('/ui/parts/api.js').then(({ useKey }) => useKey(key))", key)

        use("first")
        page.get_by_label(SWITCH).check()
        expect(page.get_by_text("every browser with this key")).to_be_visible()
        ask(page, "Of the first key")
        expect(listed(page)).to_have_text(["Of the first key"])
        late = []

        def hold(route):
            late.append(route)

        page.route("**/v1/chats/*", hold)
        more(page, "Of the first key", "Pin")
        until_told(page, lambda: late)
        use("second")
        expect(listed(page)).to_have_count(0)
        expect(asked(page)).to_have_count(0)
        expect(page.get_by_label(SWITCH)).not_to_be_checked()
        theirs = httpx2.get(f"{site.url}/v1/chats", headers={"authorization": "Bearer second"})
        assert theirs.json()["data"] == [], "not even what was being written"
        with page.expect_response("**/v1/chats/*"):
            late[0].continue_()
        drawn(page)
        expect(listed(page)).to_have_count(0)
        page.unroute_all()
        use("first")
        expect(listed(page)).to_have_text(["Of the first key"])
