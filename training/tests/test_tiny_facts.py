"""What builtin:tiny says of the server is true of the server that runs, and it tells agents what it is."""

from pathlib import Path

import httpx2
import pytest
from openai import BadRequestError, OpenAI

from cobali_ray.settings import EngineSettings
from tests.page.stack import Site
from training.corpus import server, server_facts
from training.corpus.agents import ANSWER
from training.corpus.checks import has, one_sentence, passes
from training.facts import observed_at

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
DEFAULTS = EngineSettings().values()
ABILITIES = {
    "tools": ("Does the server support tools?", "Is function calling supported?"),
    "structured": ("Is response_format supported?", "Can it do structured output?"),
    "embeddings": ("Are embeddings supported?", "Does it do speculative decoding?"),
    "images": ("Does it support images?", "Are images supported?"),
    "several_gpus": ("Can it use several GPUs?", "Does it run on several machines?"),
    "messages_api": ("Can I use Claude Code with this server?",),
    "ollama_api": ("Does the server speak Ollama's API?",),
}
KNOWN_WRONG = {"Are images supported?"}
"""Answered with the entry about tools; the other wordings show that it knows (docs/tiny.md)."""
GREETINGS = ("hi", "Hello!", "Who are you?", "Fix the failing test in src/parser.py")
RARE = ("CONTRIBUTING.md", "docs/cache.md", "docs/alerts.md")
PAGES = ("ARCHITECTURE.md", *(pytest.param(page, marks=pytest.mark.thorough) for page in RARE))
"""Documents that the corpus has nothing of, as the instructions of an agent."""


@pytest.fixture(scope="module")
def site():
    with Site(model="builtin:tiny", n_ctx=4096, n_threads=1) as site:
        yield site


@pytest.fixture
def ask(site):
    client = OpenAI(base_url=f"{site.url}/v1", api_key="unused", max_retries=0)

    def ask_one(*messages, **more):
        answer = client.chat.completions.create(
            model="tiny", messages=list(messages), temperature=0, max_tokens=100, **more
        )
        return answer.choices[0].message.content

    with client:
        yield ask_one


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def test_what_it_was_taught_of_the_server_is_true_of_the_server(site):
    assert observed_at(site.url) == server_facts.recorded_facts(), (
        "builtin:tiny states what is no longer so: see `python -m training facts` in training/README.md"
    )


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        pytest.param("POST /v1/chat/completions: tools",
            lambda models, api, _: api["components"]["schemas"]["ChatBody"]["properties"].pop("tools"),
            id="a-field"),
        pytest.param("POST /v1/embeddings", lambda models, api, _: api["paths"].pop("/v1/embeddings"),
            id="a-path"),
        pytest.param("tiny: image",
            lambda models, api, _: models["data"][0]["architecture"]["input_modalities"].append("image"),
            id="what-the-model-reads"),
        pytest.param("default n_slots", lambda _, __, defaults: defaults.update(n_slots=8), id="a-default"),
        pytest.param("setting mmproj", lambda _, __, defaults: defaults.pop("mmproj"), id="a-setting"),
    ],
)  # fmt: skip
def test_a_change_of_a_capability_is_seen(site, claim, change):
    models, api = (httpx2.get(f"{site.url}{path}").json() for path in ("/v1/models", "/openapi.json"))
    assert server_facts.observed(models, api, DEFAULTS) == server_facts.recorded_facts()
    defaults = dict(DEFAULTS)
    change(models, api, defaults)
    seen = server_facts.observed(models, api, defaults)
    assert {name for name in seen if seen[name] != server_facts.recorded_facts()[name]} == {claim}


def test_it_says_what_the_server_can_do(ask):
    checks = {block.name: has(*block.terms) for block in server.blocks()}
    also = {"structured": checks["response_format_word"]}  # what response_format does is an answer, too
    wrong = {
        question: answer
        for name, questions in ABILITIES.items()
        for question in questions
        if not passes(checks[name], answer := ask(user(question)))
        and not (name in also and passes(also[name], answer))
    }
    assert wrong.keys() <= KNOWN_WRONG, wrong


@pytest.mark.parametrize("n", [1_500, pytest.param(7_500, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("page", PAGES)
def test_an_agent_is_told_in_one_sentence_what_it_is(ask, page, n):
    text = (ROOT / page).read_text(encoding="utf-8")
    wrong = [
        (said, answer)
        for said in GREETINGS
        if not passes(one_sentence(ANSWER), answer := ask(system(text[:n]), user(said)))
    ]
    assert len(wrong) <= 1, wrong  # none when it shipped, but these pages change


def test_instructions_that_do_not_fit_are_refused(ask):
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")[:26_000]
    with pytest.raises(BadRequestError, match="4096"):
        ask(system(text), user("hi"))
