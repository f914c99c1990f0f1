"""How an answer is drawn: markdown, code, math, tool calls; and what a model says is never trusted."""

import json
import re

import pytest
from axe import violations
from hands import PHONE, Voice, momentary, say, until_told

pytest.importorskip("playwright")
from playwright.sync_api import expect

RICH = """\
### Sorting

Some **bold** and *soft* words, `code`, ~~gone~~ and a [link](https://example.com/a_b_c).
A line of its own, &lt;tags&gt; and me@example.com.

| Model | Context |
|:------|--------:|
| tiny | 4,096 |

1. First
2. Second
   - inner

- [x] done
- [ ] to do

> A quote.

```python
def area(r):
    return 3.14 * r  # round
```
"""
HOSTILE = """\
<script>window.ran = 1</script> <img src=x onerror="window.ran = 2">

<iframe src="javascript:parent.ran = 3"></iframe>

<div hidden>
*seen*

[a](javascript:window.ran=4) [b](JaVaScRiPt:window.ran=5) [c](data:text/html,x) [d](/ui/app.js)
[e](vbscript:x) [f](&#106;avascript:window.ran=6) <javascript:window.ran=7> [g]: javascript:window.ran=8

[g] ![pixel](https://tracker.invalid/p.png "t") ![local](/ui/icon.svg) ![x](data:image/png;base64,AAAA)

```<img src=x onerror=window.ran=9>
</code></pre><script>window.ran = 10</script>
```
| <b onclick=x>h</b> |
|---|
| <svg onload=window.ran=11> |
"""


def ask(make_page, site, **options):
    page = make_page(site, "chat", **options)
    voice = Voice(page)
    say(page, "hello")
    return page, voice, page.get_by_role("article")


def finish(page, voice):
    voice.end(completion_tokens=30)
    expect(page.locator(".numbers .badge")).to_be_attached()


def test_an_answer_is_drawn_as_markdown(make_page, site):
    page, voice, answer = ask(make_page, site)
    for i in range(0, len(RICH), 7):
        voice.say(content=RICH[i : i + 7])
    finish(page, voice)
    expect(answer.get_by_role("heading", name="Sorting", level=3)).to_be_visible()
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("em")).to_have_text("soft")
    expect(answer.locator("del")).to_have_text("gone")
    link = answer.get_by_role("link", name="link")
    expect(link).to_have_attribute("href", "https://example.com/a_b_c")
    expect(link).to_have_attribute("target", "_blank")
    expect(link).to_have_attribute("rel", re.compile("noopener"))
    expect(answer.get_by_role("link", name="me@example.com")).to_have_attribute(
        "href", "mailto:me@example.com"
    )
    assert ".\nA line of its own, <tags> and" in answer.inner_text()
    expect(answer.get_by_role("columnheader")).to_have_text(["Model", "Context"])
    expect(answer.get_by_role("cell").last).to_have_css("text-align", "right")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("ol ul > li")).to_have_text("inner")
    expect(answer.get_by_role("checkbox", name="done")).to_be_checked()
    expect(answer.get_by_role("checkbox", name="to do")).not_to_be_checked()
    expect(answer.locator("blockquote")).to_have_text("A quote.")
    expect(answer.locator("pre .hl-keyword")).to_have_text(["def", "return"])
    expect(answer.locator("pre")).to_have_text("def area(r):\n    return 3.14 * r  # round")


def test_nothing_that_a_model_says_runs_or_is_loaded(make_page, site):
    page, voice, answer = ask(make_page, site)
    voice.say(content=HOSTILE)
    finish(page, voice)
    expect(answer.locator("pre")).to_contain_text("window.ran = 10")
    assert page.evaluate("window.ran") is None
    inside = "(article) => [...article.querySelectorAll('*')].map((element) => element.localName)"
    assert not set(answer.evaluate(inside)) & {"script", "img", "iframe", "b", "style", "object", "form"}
    links = answer.locator(".text a")
    expect(links).to_have_text(["pixel"])
    expect(links).to_have_attribute("href", "https://tracker.invalid/p.png")
    assert not answer.evaluate("(a) => [...a.querySelectorAll('.text *')].some((e) => e.onclick || e.onload)")
    expect(answer).to_contain_text("<script>window.ran = 1</script>")
    expect(answer.locator("em")).to_have_text("seen")  # HTML is text, and what is in it markdown


def test_an_open_fence_looks_like_code_and_what_is_finished_keeps_its_elements(make_page, site):
    # A page of its own: on one that others had, the end of an answer often draws it anew. Why is not known.
    page, voice, answer = ask(make_page, site, reduced_motion="reduce")
    voice.say(content="First **paragraph** here.\n\nSecond.\n\n```js\nconst a = 1;\nlet")
    code = answer.locator("figure.code")
    expect(code.locator("figcaption span")).to_have_text("js")
    expect(code.locator("pre")).to_have_text("const a = 1;\nlet")
    expect(code.locator(".hl-keyword")).to_have_text(["const"])  # whole lines have colours
    expect(code.locator(".caret")).to_be_visible()
    first = answer.locator(".markdown p").first
    first.evaluate("element => { window.first = element; getSelection().selectAllChildren(element); }")
    voice.say(content=" b = 2;\n``")
    expect(code.locator("pre")).to_have_text("const a = 1;\nlet b = 2;")
    voice.say(content="`\n\nAfter it.")
    expect(answer.locator(".markdown > p").last).to_have_text("After it.")
    finish(page, voice)
    expect(code.locator(".hl-keyword")).to_have_text(["const", "let"])
    assert first.evaluate("element => element === window.first")
    assert page.evaluate("getSelection().toString()") == "First paragraph here."


def test_math_is_drawn_and_what_is_none_stays_as_it_was_written(make_page, site):
    page, voice, answer = ask(make_page, site)
    fetched = []
    page.on("request", lambda request: fetched.append(request.url.rsplit("/", 1)[-1]))
    tex = [r"a_1 * b_1 * c_{*}", r"x_1 \cdot \_y", "\n\\int_0^1 *x* \\\\ dx\n", r" \frac{1}{2} "]
    voice.say(content="Words without any.\n\n")
    expect(answer.locator(".markdown")).to_have_text("Words without any.")
    assert not [name for name in fetched if "atex" in name.lower()], "it is fetched for the first formula"
    voice.say(
        content=f"So ${tex[0]}$ and \\({tex[1]}\\), for $5 or $6-$7 *in all*.\n\n$${tex[2]}$$\n\n"
        f"\\[{tex[3]}\\]"
        "\n\nNone: $\\nosuchcommand{x}$, \\(\\href{https://x.example}{x}\\)"
    )
    finish(page, voice)
    expect(answer.locator(".katex")).to_have_count(5)
    drawn = answer.locator("annotation").all_text_contents()
    assert [one.strip() for one in drawn[:4]] == [one.strip() for one in tex]
    expect(answer.locator(".katex-display")).to_have_count(2)
    expect(answer.locator(".math")).to_have_text("$\\nosuchcommand{x}$")
    expect(answer.locator(".katex a")).to_have_count(0)
    expect(answer.locator("em")).to_have_text("in all")
    until_told(page, lambda: any(name.startswith("KaTeX_Main") for name in fetched))  # of this server


def test_without_katex_math_is_the_text_that_it_is_written_as(make_page, site):
    page = make_page(site, "chat", allow=["ERR_"])
    page.route("**/ui/vendor/katex-*.js", lambda route: route.abort())
    voice = Voice(page)
    say(page, "hello")
    voice.say(content="It is $x^2$.\n\n$$\ny\n$$\n")
    finish(page, voice)
    expect(page.get_by_role("article").locator(".math")).to_have_text(["$x^2$", "$$\ny\n$$", "$$\ny\n$$"])


def test_without_its_libraries_an_answer_is_plain_text(make_page, site):
    page = make_page(site, "chat", allow=["ERR_"])
    page.route("**/ui/vendor/marked-*", lambda route: route.abort())
    voice = Voice(page)
    say(page, "hello")
    voice.say(content="# One\n\n**two**")
    finish(page, voice)
    assert page.locator(".text").inner_text() == "# One\n\n**two**"


def test_code_and_answers_are_copied_as_they_came(make_page, site):
    page, voice, answer = ask(make_page, site)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    momentary(page)
    voice.say(content=RICH)
    finish(page, voice)
    copied = "navigator.clipboard.readText()"
    answer.get_by_role("button", name="Copy code").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate(copied) == "def area(r):\n    return 3.14 * r  # round"
    answer.get_by_role("button", name="Copy answer").click()
    expect(answer.get_by_role("button", name="Copied")).to_have_count(2)
    assert page.evaluate(copied) == RICH


RESULTS = """async (results) => {
    const { ask } = await import("/ui/request/chat.js");
    const { Answer } = await import("/ui/answer/answer.js");
    const { html, render } = await import("/ui/parts/preact.js");
    const [answer] = ask({}).answers;
    window.typed = [];
    const onResult = (...all) => typed.push(all);
    render(html`<${Answer} answer=${answer} onResult=${onResult} />`, document.querySelector(".talk"));
    window.setResults = (all) => answer.set({
        calls: answer.get().calls.map((call, i) => ({ ...call, ...all[i] })),
    });
}"""
"""Draw an answer by itself, whose tool calls get results as a chat would give them."""


def test_calls_show_their_state_their_arguments_and_their_result(make_page, site):
    page = make_page(site, "chat")
    voice = Voice(page)
    page.evaluate(RESULTS)
    nested = {"query": {"title": "Emma", "years": [1815, 1816]}, "limit": 3}
    voice.call(0, "get_weather", '{"city": "Oslo"}')
    voice.call(1, "find", json.dumps(nested))
    voice.call(2, "fail", "[1, 2]")
    voice.call(3, "slow", "{}")
    voice.call(4, "by_hand", "{}")
    voice.end("tool_calls", completion_tokens=90)
    calls = page.get_by_role("list", name="Tool calls").get_by_role("listitem")
    expect(calls).to_have_count(5)
    expect(calls.nth(1).locator("dt")).to_have_text(["query", "limit"])
    expect(calls.nth(1).locator("dd pre")).to_have_text(json.dumps(nested["query"], indent=2))
    long = {"books": [{"title": f"Volume {i}"} for i in range(40)]}
    results = [
        {"result": {"content": "4 degrees"}},
        {"result": {"content": json.dumps(long)}},
        {"result": {"error": "no such tool"}},
        {"running": True},
    ]
    page.evaluate("(all) => window.setResults(all)", results)
    expect(calls.locator(".state")).to_have_text(["answered", "answered", "failed", "running", "called"])
    expect(calls.nth(0)).to_contain_text("made-up data")
    expect(calls.nth(0).locator(".result")).to_have_text("4 degrees")
    expect(calls.nth(1).locator(".result")).not_to_be_visible()
    calls.nth(1).locator("summary").click()
    expect(calls.nth(1).locator(".result")).to_have_text(json.dumps(long, indent=2))
    expect(calls.nth(2).locator(".args")).to_have_text("[1, 2]")
    expect(calls.nth(2).locator(".wrong")).to_have_text("no such tool")
    expect(page.get_by_label("Result of")).to_have_count(1)
    page.get_by_label("Result of by_hand").fill("it worked")
    calls.nth(4).get_by_role("button", name="Send result").click()
    calls.nth(4).get_by_role("button", name="Send as error").click()
    assert [result for _, result in page.evaluate("typed")] == [
        {"content": "it worked"},
        {"error": "it worked"},
    ]
    assert not violations(page)


def test_a_rich_answer_is_accessible(make_page, site):
    page, voice, answer = ask(make_page, site)
    voice.say(content=RICH + "\n# Top\n\n$$\nx\n$$\n\n```diff\n+ a\n- b\n```\n")
    finish(page, voice)
    expect(answer.locator(".hl-deletion")).to_be_visible()
    found = violations(page, "answer")
    page.get_by_role("button", name="Copy request").click()
    assert found + violations(page, "dialog") == []


def test_on_a_phone_what_is_wide_is_broken_or_scrolls_in_its_own_box(make_page, site):
    page, voice, answer = ask(make_page, site, **PHONE, reduced_motion="no-preference")
    wide = "document.documentElement.scrollWidth"
    voice.say(reasoning_content="w" * 300)
    expect(answer.locator(".tail")).to_be_visible()
    assert page.evaluate(wide) == 360
    answer.locator(".reasoning summary").tap()
    row = "| " + " | ".join(f"column{i}" for i in range(20)) + " |\n"
    voice.say(
        content=f"{row}{'|---' * 20}|\n{row}\n```\n{'w' * 400}\n```\n\n$$\n{'x' * 400}\n$$\n\n`{'y' * 400}`\n"
    )
    voice.call(0, "weather", "w" * 300)
    finish(page, voice)
    expect(answer.locator("figure.code")).to_be_visible()
    expect(answer.locator(".calls")).to_be_visible()
    assert page.evaluate(wide) == 360
    expect(page.locator(".katex-display")).to_have_count(1)
    for box in (".table", "figure.code pre", ".formula-block"):
        assert answer.locator(box).evaluate("(element) => element.scrollWidth > element.clientWidth + 100"), (
            box
        )
