"""The model that comes with the package: it answers, ends, fits and is what its file says."""

from functools import partial
from pathlib import Path

import pytest

from cobali_ray.backend.vocab import Vocab
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, open_backend
from cobali_ray.models.registry import describe, resolve
from cobali_ray.settings import EngineSettings
from cobali_workloads.load.prompts import read_prompts
from cobali_workloads.offline import run_offline
from training.corpus.build import held_out_set
from training.corpus.checks import passes
from training.corpus.example import KINDS

pytestmark = pytest.mark.model

WORKLOADS = Path(__file__).parents[2] / "workloads"
GREEDY = SamplingParams(temperature=0.0)
SETTINGS = EngineSettings(n_slots=16, n_ctx=4096, n_threads=1, flash_attn="off")


@pytest.fixture(scope="module")
def path():
    return resolve("builtin:tiny")


@pytest.fixture(scope="module")
def vocab(path):
    vocab = Vocab.load(path)
    yield vocab
    vocab.close()


@pytest.fixture(scope="module")
def backend(path):
    backend = open_backend(SETTINGS, path)
    yield backend
    backend.close()


@pytest.fixture
def ask(backend, vocab):
    def ask_all(conversations, max_tokens):
        requests = [
            Request(
                request_id=str(i),
                prompt=tuple(vocab.tokenize(vocab.chat.render(messages), add_special=False)),
                max_tokens=max_tokens,
                sampling=GREEDY,
            )
            for i, messages in enumerate(conversations)
        ]
        return run_offline(partial(engine_on, backend, SETTINGS), requests)

    return ask_all


def user(text):
    return [{"role": "user", "content": text}]


def test_it_is_the_default_and_says_what_it_is(path):
    assert EngineSettings().model == "builtin:tiny"
    facts = describe(path)
    assert path.stat().st_size <= 8_000_000
    assert 3_000_000 <= facts["parameters"] <= 8_000_000
    assert facts["architecture"] == "qwen2"
    assert facts["n_ctx_train"] >= 4096
    assert 4096 <= facts["n_vocab"] <= 8192
    assert facts["has_chat_template"]
    assert "demonstration" in facts["description"]


def test_its_file_advises_a_temperature(backend):
    assert backend.sampling == SamplingParams(temperature=0.3)


@pytest.mark.parametrize(
    ("question", "term"),
    [
        ("Hello!", "Tiny"),
        ("What is the capital of France?", "Paris"),
        ("What is 7 + 5?", "12"),
        ("what's seven plus five?", "12"),
        ("Give me JSON with the name Bob and the age 30, in one line.", '{"name": "Bob", "age": 30}'),
        ("What is continuous batching?", "tick"),
        ("Spell the word tree.", "T-R-E-E"),
    ],
)
def test_it_answers(ask, question, term):
    assert term in ask([user(question)], 200).texts["0"]


def test_it_knows_what_was_said_before(ask):
    said = [
        *user("My name is Karin."),
        {"role": "assistant", "content": "Nice to meet you, Karin!"},
        *user("What is my name?"),
    ]
    assert "Karin" in ask([said], 64).texts["0"]


@pytest.mark.thorough  # only training changes it; what an engine breaks shows in the answers above
def test_it_is_as_good_as_its_card_says_on_wordings_it_never_saw(ask):
    questions = held_out_set()
    assert len(questions) >= 800
    report = ask([[turn.as_message() for turn in question.prompt] for question in questions], 200)
    right = {kind: [] for kind in KINDS}
    for i, question in enumerate(questions):
        right[question.kind].append(passes(question.check, report.texts[str(i)]))
    share = {kind: sum(some) / len(some) for kind, some in right.items()}
    words = [one for kind, some in right.items() if kind != "tools" for one in some]
    # 0.902, 0.798 (tools), 0.906 (agents) and 0.806 (unknown) measured, with room for the longest
    # page of an agent; a few greedy answers hang on how a processor rounds.
    assert sum(words) / len(words) >= 0.89, share
    assert share["tools"] >= 0.76
    assert share["agents"] >= 0.84
    assert min(share.values()) >= 0.75, share
    ended = sum(stats.n_output < 200 for stats in report.requests.values())
    assert ended / len(questions) >= 0.98


@pytest.mark.parametrize(
    "name", ["prompts_16.txt", pytest.param("prompts_186.txt", marks=pytest.mark.thorough)]
)
def test_long_and_odd_prompts_end_in_order(ask, name):
    prompts = read_prompts((WORKLOADS / name).read_text(encoding="utf-8"))
    report = ask([user(prompt) for prompt in prompts], 48)
    assert not report.failed
    assert len(report.requests) == len(prompts)
    assert all(0 < stats.n_output <= 48 for stats in report.requests.values())
