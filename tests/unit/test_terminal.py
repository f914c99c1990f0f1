"""`cobali chat` and `cobali complete`: what is typed, what is drawn, what is sent. No server, no terminal."""

import io
import itertools
import json
import re
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from cobali_ray.errors import ConfigError, NoAnswerError, NoServerError
from cobali_ray.terminal import servers
from cobali_ray.terminal.asking import AnswerEnd, AnswerPiece, AnswerWait, ServerClient
from cobali_ray.terminal.chat import COMMANDS, ChatLoop, print_answer
from cobali_ray.terminal.conversation import Conversation, read_setting
from cobali_ray.terminal.drawing import Drawing, harmless, numbers_of, split_blocks
from cobali_ray.terminal.lines import Command, command_in, piped_text, read_text
from cobali_ray.terminal.servers import server_for


def typed(*lines):
    """Read these lines, whatever the prompt; an exception among them is raised."""
    left = iter(lines)

    def ask(_):
        line = next(left, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    return ask


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param(["hello "], "hello", id="one-line"),
        pytest.param(["one\\", "two\\", "three"], "one\ntwo\nthree", id="backslashes"),
        pytest.param(['"""one', "", '  two"""'], "one\n\n  two", id="quotes"),
        pytest.param(['"""one"""'], "one", id="quotes-on-one-line"),
        pytest.param(["pasted\nlines"], "pasted\nlines", id="pasted"),
    ],
)
def test_several_lines_are_one_text(lines, text):
    assert read_text(typed(*lines)) == text


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_is_piped_in_is_text(monkeypatch, errors):
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(ConfigError, match="stdin: what is piped in is not text"):
        piped_text()


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", Command("new", "")),
        ("/system  You are\nbrief. ", Command("system", "You are\nbrief.")),
        ("/etc/passwd is what?", None),
        ("what is /new?", None),
    ],
)
def test_a_slash_makes_a_command(text, command):
    assert command_in(text, COMMANDS) == command


def test_an_unknown_command_names_a_near_one():
    with pytest.raises(ConfigError, match=r"no such command; did you mean /save\?"):
        command_in("/saev x", COMMANDS)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("temperature=0.2", ("temperature", 0.2)),
        ('stop = ["a", "b"]', ("stop", ["a", "b"])),
        ("user=me", ("user", "me")),
        ("seed=", ("seed", None)),
    ],
)
def test_a_setting_is_json_or_text(text, setting):
    assert read_setting(text) == setting


@pytest.mark.parametrize("text", ["temperature", "=1", "a b=1"])
def test_what_is_no_setting_says_what_one_is(text):
    with pytest.raises(ConfigError, match="expected NAME=VALUE such as temperature"):
        read_setting(text)


@pytest.mark.parametrize("text", ["model=m", "messages=[]", "n=2", "stream=false", "stream_options="])
def test_what_the_chat_sets_itself_is_no_setting(text):
    with pytest.raises(ConfigError, match=r"^--set: \w+ is set by the chat itself$"):
        read_setting(text)


def test_a_conversation_comes_back_from_its_file(tmp_path):
    kept = Conversation("m", "Be brief.", {"seed": 1})
    kept.ask("ü?")
    kept.take("Yes.")
    kept.save(tmp_path / "c.json")
    other = Conversation("n")
    other.load(tmp_path / "c.json")
    assert other.body() == kept.body() | {"model": "n"}
    assert other.body()["messages"][0] == {"role": "system", "content": "Be brief."}
    for content, says in (("{}", "not a conversation"), ("[", "not a conversation")):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(ConfigError, match=says):
            other.load(tmp_path / "c.json")
    assert other.messages == kept.messages, "nothing is lost by a file that does not serve"
    for path in (tmp_path, Path("~nobody-of-this-name/c.json")):
        with pytest.raises(ConfigError, match="cannot read"):
            other.load(path)
        with pytest.raises(ConfigError, match="cannot write"):
            other.save(path)


@pytest.mark.parametrize(
    ("text", "blocks", "rest"),
    [
        pytest.param("One\n\nTwo", ["One"], "Two", id="paragraphs"),
        pytest.param("One\n\n", [], "One\n\n", id="what-follows-is-not-known"),
        pytest.param("```py\na\n\nb\n```\n\nx", ["```py\na\n\nb\n```"], "x", id="code-is-one"),
        pytest.param("````\n```\n\nb", [], "````\n```\n\nb", id="longer-fence"),
        pytest.param("1. a\n\n   more\n\n2. b\n\nEnd", ["1. a\n\n   more\n\n2. b"], "End", id="list-is-one"),
        pytest.param("- a\n\n    code\n", [], "- a\n\n    code\n", id="indented"),
    ],
)
def test_blocks_end_at_an_empty_line(text, blocks, rest):
    assert split_blocks(text) == (blocks, rest)


TEXT = "# Head\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- x\n\n- y\n\n```py\n" + "".join(
    f"line {i}\n\n" for i in range(30)
) + "```\n\nEnd."  # fmt: skip


def test_each_line_of_an_answer_is_on_the_screen_once(screen):
    shown = screen(lambda console: draw(console, TEXT))
    for i in range(30):
        assert shown.count(f"line {i} ") == 1, shown
    assert [shown.count(word) for word in ("Head", " a ", "End.")] == [1, 1, 1]
    assert not re.search(r"(?:\n *){4}[^ \n]", shown), "no holes where something was erased"


def draw(console, text, thought=""):
    clock = iter(range(10_000))
    with Drawing(console, now=lambda: float(next(clock))) as drawing:
        if thought:
            drawing.think(thought)
        for i in range(0, len(text), 5):
            drawing.say(text[i : i + 5])


@pytest.fixture
def screen():
    """Play what is printed on a screen that knows the few movements of rich, with what scrolled away."""

    def play(act):
        out = io.StringIO()
        act(
            Console(
                file=out, force_terminal=True, width=60, height=12, color_system=None, legacy_windows=False
            )
        )
        lines, row = [""], 0
        for word in _WORDS.findall(out.getvalue()):
            if word == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif word == "\x1b[1A":
                row -= 1
                assert row > len(lines) - HEIGHT - 1, "moved above the screen"
            elif word == "\x1b[2K":
                lines[row] = ""
            elif not word.startswith(("\x1b", "\r")):
                lines[row] += word
        return "\n".join(f"{line} " for line in lines)

    return play


def test_ctrl_c_finds_an_empty_line_to_be_echoed_on():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=20, height=12, color_system=None)
    clock = iter(range(1, 10))
    with Drawing(console, now=lambda: float(next(clock))) as drawing:
        drawing.say("Once upon a time there was a sailor")
        assert out.getvalue().endswith("\n")


HEIGHT = 12
_WORDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")


def test_reasoning_comes_before_the_answer_and_nothing_steers_the_terminal(screen):
    shown = screen(lambda console: draw(console, "Yes.\x1b]0;title\x07", thought="Hm. \x1b[2J"))
    assert shown.split() == ["Hm.", "[2J", "Yes.]0;title"]
    assert harmless("a\x9b1A\tb\nc\r") == "a1A\tb\nc"


def test_the_numbers_are_the_servers():
    usage = {"completion_tokens": 31, "prompt_tokens": 14, "prompt_tokens_details": {"cached_tokens": 3}}
    timings = {"ttft_s": 0.0119, "tokens_per_second": 174.5}
    line = "31 tokens, prompt 14 (3 cached), first after 12 ms, 174.5 tok/s"
    assert numbers_of(AnswerEnd("stop", usage, timings)) == line
    assert "length limit" in numbers_of(AnswerEnd("length", usage, timings))
    assert numbers_of(AnswerEnd(), stopped=True) == "stopped"


class FakeAsker:
    """Answers from a list; an exception among its pieces is raised."""

    url = "http://here"

    def __init__(self, *answers):
        self.answers, self.bodies, self.closed = list(answers), [], 0

    def models(self):
        return ["m", "n"]

    def check(self, _path, body):
        if body.get("temperature") == "hot":
            raise NoAnswerError("temperature: input should be a valid number")
        return "foo" if "foo" in body else ""

    def stream(self, _path, body):
        self.bodies.append(json.loads(json.dumps(body)))
        try:
            for piece in self.answers.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1


@pytest.fixture
def talk():
    def talk(asker, *lines):
        out = io.StringIO()
        conversation = Conversation("m")
        ChatLoop(asker, conversation, Console(file=out, width=100), typed(*lines)).run()
        return conversation, out.getvalue()

    return talk


ENDING = AnswerEnd("stop", {"completion_tokens": 1}, {})


def test_what_was_said_is_sent_again(talk):
    asker = FakeAsker([AnswerPiece("One."), ENDING], [AnswerPiece("Two."), ENDING])
    _, shown = talk(asker, "a?", "/system Be brief.", "/set seed=7", "b?")
    assert asker.bodies[1] == {
        "model": "m",
        "seed": 7,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a?"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "b?"},
        ],
    }
    assert "One." in shown
    assert "1 token" in shown


def test_retry_asks_the_last_question_again(talk):
    asker = FakeAsker([AnswerPiece("One."), ENDING], [AnswerPiece("Two."), ENDING])
    conversation, _ = talk(asker, "/retry", "a?", "/retry")
    assert [message["content"] for message in conversation.messages] == ["a?", "Two."]


def test_a_question_that_was_refused_is_not_lost(talk):
    asker = FakeAsker([NoAnswerError("the queue is full")], [AnswerPiece("One."), ENDING])
    conversation, shown = talk(asker, "a?", "/retry")
    assert "Error: the queue is full" in shown
    assert [message["content"] for message in conversation.messages] == ["a?", "One."]
    asker = FakeAsker([NoAnswerError("the queue is full")], [AnswerPiece("One."), ENDING])
    conversation, _ = talk(asker, "a?", "b?")
    assert [message["content"] for message in conversation.messages] == ["b?", "One."]
    _, shown = talk(FakeAsker([NoAnswerError("the queue is full")]), "a?", "/new", "/retry")
    assert "nothing has been asked yet" in shown, "it belonged to the old conversation"


def test_ctrl_c_stops_the_answer_and_the_second_leaves(talk):
    asker = FakeAsker(
        [AnswerPiece("Half"), KeyboardInterrupt(), AnswerPiece(" more")], [AnswerPiece("One."), ENDING]
    )
    conversation, shown = talk(asker, "a?", KeyboardInterrupt(), "never read")
    assert conversation.messages[-1]["content"] == "Half"
    assert "stopped" in shown
    assert asker.closed == 1
    conversation, shown = talk(
        asker, KeyboardInterrupt(), "a?", KeyboardInterrupt(), KeyboardInterrupt(), "never"
    )
    assert [message["content"] for message in conversation.messages] == ["a?", "One."]
    assert shown.count("Ctrl-C again leaves.") == 2


def test_commands_say_what_they_did(talk, tmp_path):
    file = tmp_path / "c.json"
    asker = FakeAsker([AnswerPiece("One."), ENDING])
    lines = [
        "a?",
        f"/save {file}",
        "/new",
        f"/load {file}",
        "/model",
        "/model x",
        "/model n",
        "/set",
        "/save",
        "/exit",
    ]
    conversation, shown = talk(asker, *lines, "never read")
    assert "Saved 2 messages" in shown
    assert "Loaded 2 messages" in shown
    assert "the server has no model 'x'; it has m, n" in shown
    assert "Error: /save: name a file" in shown
    assert conversation.model == "n"
    assert len(asker.bodies) == 1


@pytest.mark.parametrize(
    ("pieces", "error", "printed"),
    [
        ([AnswerPiece("One"), AnswerPiece("."), ENDING], None, "One.\n"),
        ([AnswerPiece("One.\n"), ENDING], None, "One.\n"),
        ([AnswerPiece("On"), KeyboardInterrupt()], KeyboardInterrupt, "On\n"),
        ([AnswerPiece("On"), NoAnswerError("gone")], NoAnswerError, "On\n"),
        ([NoAnswerError("refused")], NoAnswerError, ""),
    ],
)
def test_what_follows_a_plain_answer_has_a_line_of_its_own(capsys, pieces, error, printed):
    with pytest.raises(error) if error else nullcontext():
        print_answer(FakeAsker(pieces), "/", {})
    assert capsys.readouterr().out == printed


def test_a_setting_that_the_server_refuses_is_not_set(talk):
    typed_in = ("temperature", "temperature=0.2", "temperature=hot", "seed=7", "foo=1", "foo=")
    conversation, shown = talk(FakeAsker(), *(f"/set {text}" for text in typed_in))
    assert "Error: /set: expected NAME=VALUE" in shown
    assert "Error: temperature: input should be a valid number" in shown
    assert conversation.settings == {"temperature": 0.2, "seed": 7}
    assert shown.count("The server does not know foo.") == 1
    conversation = Conversation("m", settings={"temperature": "hot"})
    with pytest.raises(NoAnswerError, match="valid number"):
        ChatLoop(FakeAsker(), conversation, Console(file=io.StringIO()), typed("never read")).run()


def answering(respond):
    """Return a ServerClient of a server that answers with a function of the request."""
    return ServerClient("http://here:1/v1/", "secret", httpx2.MockTransport(respond))


def test_a_stream_is_read_to_its_ending():
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "reasoning_content": "Hm."}}]},
        {"choices": [{"delta": {"content": "Yes"}}]},
        {"choices": [{"text": "."}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 2}, "timings": {"ttft_s": 0.1}},
    ]
    lines = ": hello\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def respond(request):
        assert request.headers["authorization"] == "Bearer secret"
        assert json.loads(request.content)["stream_options"] == {"include_usage": True}
        return httpx2.Response(200, text=lines, headers={"x-cobali-ignored-fields": "foo"})

    *pieces, ending = answering(respond).stream("/v1/chat/completions", {})
    assert pieces == [AnswerPiece(reasoning="Hm."), AnswerPiece("Yes"), AnswerPiece(".")]
    assert ending == AnswerEnd("stop", {"completion_tokens": 2}, {"ttft_s": 0.1}, "foo")


def test_a_question_says_how_far_it_is_until_its_answer_begins(talk):
    chunks = [
        {"choices": [{"delta": {}}], "queue_progress": {"n_ahead": 2, "wait_s": None}},
        {"choices": [{"delta": {}}], "prompt_progress": {"total": 200, "cache": 0, "processed": 50}},
        {"choices": [{"delta": {"content": "Yes"}, "finish_reason": "stop"}]},
    ]
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)

    def respond(request):
        assert request.headers["x-cobali-progress"] == "true"
        return httpx2.Response(200, text=lines)

    *pieces, _ = answering(respond).stream("/v1/chat/completions", {})
    assert pieces == [AnswerWait(None, 2), AnswerWait(0.25), AnswerPiece("Yes")]
    console = Console(file=(out := io.StringIO()), width=60, force_terminal=True)
    with Drawing(console, itertools.count(1).__next__) as drawing:
        drawing.wait(AnswerWait(None, 2, 7.4))
        drawing.wait(AnswerWait(0.25))
        drawing.say("Yes")
    shown = out.getvalue()
    assert shown.index("2 ahead, about 7 s") < shown.index("reading, 25%") < shown.index("Yes")


def test_settings_are_checked_by_the_server():
    def respond(request):
        assert request.url.path == "/v1/chat/completions/input_tokens"
        body = json.loads(request.content)
        assert body.pop("stream"), "as the chat will send it"
        if body["temperature"] == "hot":
            return httpx2.Response(400, json={"error": {"message": "temperature: no"}})
        return httpx2.Response(200, json={}, headers={"x-cobali-ignored-fields": "foo"})

    assert answering(respond).check("/v1/chat/completions", {"temperature": 1}) == "foo"
    with pytest.raises(NoAnswerError, match=r"^temperature: no$"):
        answering(respond).check("/v1/chat/completions", {"temperature": "hot"})


def failing(error):
    def respond(_):
        raise error

    return respond


away, cut = failing(httpx2.ConnectError("refused")), failing(httpx2.ReadError("cut"))


def answer(*args, **kwargs):
    return lambda _: httpx2.Response(*args, **kwargs)


@pytest.mark.parametrize(
    ("respond", "kind", "says"),
    [
        pytest.param(away, NoServerError, "no server answers at http://here:1; start one", id="nobody"),
        pytest.param(cut, NoAnswerError, "stopped answering: cut", id="cut"),
        pytest.param(answer(401), ConfigError, "give --key, or set COBALI_API_KEY", id="key"),
        pytest.param(
            answer(429, json={"error": {"message": "Too\nmany."}}), NoAnswerError, r"^Too many\.$", id="full"
        ),
        pytest.param(answer(404, text="<html>"), NoAnswerError, "is that a cobali server", id="other"),
    ],
)
def test_what_goes_wrong_says_what_to_change(respond, kind, says):
    with pytest.raises(kind, match=says):
        list(answering(respond).stream("/v1/chat/completions", {}))
    with pytest.raises(kind, match=says):
        answering(respond).models()


def test_an_error_in_the_middle_of_a_stream_is_told():
    lines = 'data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "The engine stopped."}}\n\n'
    stream = answering(answer(200, text=lines)).stream("/v1/completions", {})
    assert next(stream) == AnswerPiece("a")
    with pytest.raises(NoAnswerError, match="The engine stopped"):
        next(stream)


def listing(*names):
    told = [{"id": name, "capabilities": ["completion"]} for name in names]
    return answer(200, json={"data": [*told, {"id": "e", "capabilities": ["embedding"]}]})


@pytest.fixture
def find(monkeypatch):
    """Find a server where one answers like this, and return its address and the name of the model."""

    @contextmanager
    def started(model, _console):
        yield f"http://started:{model}"

    def find(respond, model, url):
        def either(request):
            own = str(request.url).startswith("http://started")
            return listing("own")(request) if own else respond(request)

        transport = httpx2.MockTransport(either)
        monkeypatch.setattr(servers, "ServerClient", lambda url, key: ServerClient(url, key, transport))
        monkeypatch.setattr(servers, "_started", started)
        with server_for(model, url=url, key=None, console=Console()) as (asker, name):
            return asker.url, name

    return find


@pytest.mark.parametrize(
    ("model", "url", "respond", "found"),
    [
        pytest.param(None, None, listing("m", "n"), ("http://127.0.0.1:8000", "m"), id="any"),
        pytest.param("n", "http://x:1", listing("m", "n"), ("http://x:1", "n"), id="named"),
        pytest.param("7", None, listing("m"), ("http://started:7", "own"), id="another-is-started"),
        pytest.param("8", None, away, ("http://started:8", "own"), id="none-runs"),
    ],
)
def test_a_server_is_found_or_started(find, model, url, respond, found):
    assert find(respond, model, url) == found


@pytest.mark.parametrize(
    ("model", "respond", "says"),
    [
        ("other", listing("m", "n"), "has no model 'other'; it has m, n"),
        (None, away, "no server answers at http://x:1"),
        (None, listing(), "has no model that writes text"),
        (None, answer(200, text="<html>"), "does not serve models"),
    ],
)
def test_a_server_that_was_named_is_the_only_one(find, model, respond, says):
    with pytest.raises(ConfigError, match=says):
        find(respond, model, "http://x:1")
