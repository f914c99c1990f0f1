"""`cobali batch run`: what is asked, in which order, how often, and how it goes on."""

import itertools
import json
import threading

import httpx2
import pytest
from typer.testing import CliRunner

from cobali_ray.cli import app
from cobali_ray.errors import ConfigError, NoAnswerError
from cobali_ray.store.lines import answer_line
from cobali_ray.terminal import batch
from cobali_ray.terminal.asking import ServerClient
from cobali_ray.terminal.batch import answered
from cobali_ray.terminal.batch_files import AnswerFile, QuestionFile


def question(custom_id, prompt="hi", endpoint="/v1/completions", **fields):
    body = {"prompt": prompt} | fields
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body})


@pytest.fixture
def asked(tmp_path):
    """Write a file of questions, and read it."""

    def go(*lines):
        path = tmp_path / "in.jsonl"
        path.write_text("\n".join(lines))
        return QuestionFile(path)

    return go


class Answering:
    """A server that answers as scripted: statuses, contents or errors, one after another."""

    def __init__(self, *script, then=(200, b'{"ok":1}')):
        self.script, self.then = iter(script), then
        self.bodies, self.pauses, self.lock = [], [], threading.Lock()
        self.client = ServerClient("http://test", None, httpx2.MockTransport(self.handle))

    def handle(self, request):
        with self.lock:
            self.bodies.append((request.url.path, json.loads(request.content)))
            step = next(self.script, self.then)
        if isinstance(step, Exception):
            raise step
        status, content, *headers = step
        return httpx2.Response(status, content=content, headers=dict(headers))

    def answers(self, questions, at_once=1):
        lines = map(questions.read, sorted(questions.places))
        return dict(answered(self.client, "m", lines, at_once, self.pauses.append))


def test_lines_are_asked_once_and_those_that_begin_alike_one_after_another(asked):
    starts = ["a" * 500, "b" * 500, "c" * 500]
    questions = asked(*(question(f"q{i}", starts[i % 3] + str(i)) for i in range(30)))
    server = Answering()
    assert sorted(server.answers(questions)) == sorted(f"q{i}" for i in range(30))
    firsts = [body["prompt"][0] for _, body in server.bodies]
    assert len([letter for letter, _ in itertools.groupby(firsts)]) == 3
    assert len(Answering().answers(questions, at_once=8)) == 30


def test_a_line_keeps_its_model_and_goes_behind_all_others_unless_it_says_so(asked):
    server = Answering()
    server.answers(
        asked(
            question("a", model="own", priority=2),
            question("b", "x"),
            question("c", "y", endpoint="/v1/responses"),
        )
    )
    told = {(path, body["model"], body.get("priority")) for path, body in server.bodies}
    assert told == {
        ("/v1/completions", "own", 2),
        ("/v1/completions", "m", 9),
        ("/v1/responses", "m", 9),
    }
    assert [body.get("store") for path, body in server.bodies if path == "/v1/responses"] == [False]


@pytest.mark.parametrize(
    ("script", "status", "pauses"),
    [
        pytest.param([(400, b"{}")], 400, [], id="its-own-fault"),
        pytest.param([(429, b"{}"), (503, b"{}")] * 4, 200, [0.5, 1, 2, 4, 8, 16, 30, 30], id="no-room"),
        pytest.param([(429, b"{}", ("retry-after", "7"))], 200, [7], id="says-when"),
        pytest.param([(500, b"{}")] * 9, 500, [0.5, 1, 2, 4], id="fails-on-it"),
        pytest.param([(500, b"{}"), httpx2.ConnectError("gone")], 200, [0.5, 1], id="dies-and-comes-back"),
        pytest.param([(200, b"<html>")], 200, [], id="no-json"),
    ],
)
def test_what_is_worth_it_is_asked_again(asked, script, status, pauses):
    server = Answering(*script)
    (answer,) = server.answers(asked(question("a"))).values()
    assert (answer.status, server.pauses) == (status, pauses)
    assert json.loads(answer_line("a", answer))["custom_id"] == "a"


def test_a_server_that_stays_away_is_given_up(asked, monkeypatch):
    monkeypatch.setattr(batch, "MAX_SILENCE_S", -1)
    server = Answering(then=httpx2.ConnectError("gone"))
    with pytest.raises(NoAnswerError, match="run the same command again to go on"):
        server.answers(asked(question("a")))


def test_answers_go_on_where_they_were(asked, tmp_path):
    questions, path = asked(*(question(f"q{i}") for i in range(4))), tmp_path / "out.jsonl"
    with AnswerFile(path) as answers:
        assert len(answers.without_answer(questions)) == 4
        answers.add(b'{"custom_id":"q2"}\n')
        answers.add(b'{"custom_id":"q')  # and it is killed
    with AnswerFile(path) as answers:
        left = [place.custom_id for place in answers.without_answer(questions)]
        assert sorted(left) == ["q0", "q1", "q3"]
        answers.add(b'{"custom_id":"q0"}\n')
    assert path.read_bytes() == b'{"custom_id":"q2"}\n{"custom_id":"q0"}\n'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no answer\n", "line 1 is not an answer"),
        ('{"custom_id":[]}\n', "line 1 is not an answer"),
        ('{"custom_id":"x"}\n', "line 1 answers 'x', which is not"),
    ],
)
def test_a_file_of_something_else_is_left_alone(asked, tmp_path, content, why):
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with AnswerFile(path) as answers, pytest.raises(ConfigError, match=why):
        answers.without_answer(asked(question("a")))
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("lines", "why"),
    [(["{"], "line 1 is not"), ([], "has no lines"), ([question("a")] * 2, "line 2 has the")],
)
def test_a_wrong_file_is_said_before_anything_is_asked(asked, lines, why):
    with pytest.raises(ConfigError, match=why):
        asked(*lines)


def test_a_disk_that_is_full_ends_the_command_in_one_line(tmp_path):
    class Full:
        def __init__(self, file):
            self.fileno, self.close = file.fileno, file.close

        def write(self, _):
            raise OSError(28, "No space left on device")

    def write():
        with AnswerFile(tmp_path / "out.jsonl") as answers:
            answers._file = Full(answers._file)
            answers.add(b"{}")

    with pytest.raises(ConfigError, match=r"--output: .*cannot be written: No space left"):
        write()


def test_the_command_is_there():
    answer = CliRunner().invoke(app, ["batch", "run", "--help"])
    assert answer.exit_code == 0
    assert "--at-once" in answer.output


def test_questions_are_not_written_over(tmp_path):
    (path := tmp_path / "in.jsonl").write_text(question("a"))
    words = ["batch", "run", str(path), "--output", str(path), "--url", "http://127.0.0.1:1"]
    answer = CliRunner().invoke(app, words)
    assert isinstance(answer.exception, ConfigError)
    assert str(answer.exception).startswith("--output: ")
    assert path.read_text() == question("a")
