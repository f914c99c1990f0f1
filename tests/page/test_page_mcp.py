"""Tools of MCP servers: found by an address, asked about before each call, reached by one worker alone."""

import pytest
from hands import Voice, kept, open_tools, say, until_told
from mcp_server import McpServer

pytest.importorskip("playwright")
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def loud():
    with McpServer() as server:
        yield server


def open_for(make_page, site, server):
    return make_page(site, "chat", allow=[server.url, "status of 40"])


def add(page, url, key=""):
    open_tools(page)
    page.get_by_label("Add an MCP server").fill(url)
    page.get_by_label("Key of the MCP server").fill(key)
    page.get_by_role("button", name="Add", exact=True).click()


def ask_for_a_call(page, name="shout"):
    voice = Voice(page)
    say(page, "Shout hello")
    voice.call(0, name, '{"text": "hello"}')
    voice.end("tool_calls")
    return voice


def test_a_server_is_added_its_tool_offered_and_called_once_somebody_agrees(make_page, site, loud):
    page = open_for(make_page, site, loud)
    add(page, loud.url)
    switch = page.get_by_role("switch", name="Loud")
    expect(switch).to_be_checked()
    expect(page.locator(".server")).to_contain_text("3 tools")
    n_calls = loud.methods().count("tools/call")
    voice = ask_for_a_call(page)
    offered = [tool["function"]["name"] for tool in voice.sent[0]["tools"]]
    assert offered == ["shout", "text_fail", "calculate_2"]
    assert all(tool.keys() == {"type", "function"} for tool in voice.sent[0]["tools"])
    call = page.get_by_role("list", name="Tool calls")
    expect(call).to_contain_text("Send this to Loud (127.0.0.1")
    assert loud.methods().count("tools/call") == n_calls
    loud.sessions.clear()  # as after its restart
    call.get_by_role("button", name="Call it").focus()
    page.keyboard.press("Enter")
    assert voice.asked(2)["messages"][-1]["content"] == "HELLO"
    asked = [message["params"] for message in loud.heard if message.get("method") == "tools/call"]
    assert asked[-1] == {"name": "shout", "arguments": {"text": "hello"}}
    until_told(page, lambda: {"jsonrpc": "2.0", "id": "question", "result": {}} in loud.heard)  # its ping
    expect(call).to_contain_text("Result, 5 characters")
    expect(call.get_by_text("HELLO", exact=True)).to_be_hidden()
    voice.answer("Done")
    kept(page)
    page.reload()
    open_tools(page)
    expect(page.get_by_role("switch", name="Loud")).to_be_checked()
    page.get_by_role("switch", name="Loud").click()
    voice = Voice(page)
    say(page, "Again")
    assert "tools" not in voice.asked(1)
    voice.end()


def test_a_call_that_nobody_allows_is_told_to_the_model_and_a_failure_too(make_page, site, loud):
    page = open_for(make_page, site, loud)
    add(page, loud.url)
    expect(page.get_by_role("switch", name="Loud")).to_be_checked()
    n_calls = loud.methods().count("tools/call")
    voice = ask_for_a_call(page)
    page.get_by_role("button", name="Do not call").click()
    assert voice.asked(2)["messages"][-1]["content"] == "Error: The user did not allow this call."
    assert loud.methods().count("tools/call") == n_calls
    voice.call(0, "text_fail", '{"text": "no"}')
    voice.end("tool_calls")
    page.get_by_role("button", name="Call it").click()
    assert voice.asked(3)["messages"][-1]["content"] == "Error: NO"
    voice.end()


def test_a_server_that_need_not_ask_is_called_at_once(make_page, site, loud):
    page = open_for(make_page, site, loud)
    add(page, loud.url)
    page.locator(".server summary").click()
    page.get_by_label("ask before each call").uncheck()
    voice = ask_for_a_call(page)
    assert voice.asked(2)["messages"][-1]["content"] == "HELLO"
    voice.end()
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".server")).to_have_count(0)


def test_what_is_wrong_with_an_address_is_said_and_a_key_goes_to_its_server_only(make_page, site):
    with McpServer(key="secret") as locked:
        page = open_for(make_page, site, locked)
        add(page, locked.url)
        fault = page.locator("#mcp-hint")
        expect(fault).to_contain_text("it needs a key, or a different one")
        add(page, f"{site.url}/health")
        expect(fault).to_contain_text("refused: status 405")
        add(page, locked.url, "secret")
        expect(page.get_by_role("switch", name="Loud")).to_be_checked()
        kept = page.evaluate("JSON.stringify(localStorage)")
        assert "secret" not in kept  # it goes with the tab
        assert page.evaluate("JSON.stringify(sessionStorage)").count("secret") == 1


def test_only_the_worker_reaches_other_hosts(browser, site, loud):
    page = browser.new_page()
    page.goto(f"{site.url}/#chat")
    reach = "(url) => fetch(url, { method: 'POST', body: '{}' }).then(() => 'reached', () => 'blocked')"
    assert page.evaluate(reach, loud.url) == "blocked"
    page.close()
