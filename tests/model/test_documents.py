"""The loops of documents, run as they stand there, and what of messages only a real engine can show."""

import re
from pathlib import Path

import pytest
from anthropic import Anthropic

from tests.page.stack import Site

pytestmark = pytest.mark.model

DOCUMENTS = Path(__file__).parents[2] / "docs"
STAMPED = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch={};"
ASK = {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": "Hello! What are you?"}]}


@pytest.fixture(scope="module")
def site():
    with Site(model="builtin:tiny", n_ctx=2048) as site:
        yield site


@pytest.fixture
def claude(site):
    with Anthropic(base_url=site.url, api_key="unused", max_retries=0) as client:
        yield client.messages


@pytest.mark.parametrize("name", ["messages.md", "responses.md", "tools.md"])
def test_the_loop_prints_what_the_document_says(site, capsys, name):
    document = (DOCUMENTS / name).read_text(encoding="utf-8")
    loop = re.search(r"```python\n(.*?)```", document, re.DOTALL)[1]
    printed = re.search(r"```text\n(.*?)```", document, re.DOTALL)[1]
    names = {}
    exec(loop.replace("http://127.0.0.1:8000", site.url), names)
    names["client"].close()
    assert capsys.readouterr().out.endswith(printed)


def test_a_stamp_in_the_system_text_does_not_hide_the_prefix(claude):
    text = "You are Tiny, and you are asked many things by many people. " * 10
    usages = [claude.create(system=STAMPED.format(i) + text, **ASK).usage for i in ("a5145", "b7712")]
    n_input = usages[0].input_tokens + usages[0].cache_read_input_tokens
    assert n_input == usages[1].input_tokens + usages[1].cache_read_input_tokens
    assert usages[1].cache_read_input_tokens >= n_input - 2


def test_the_count_is_that_of_the_call(claude):
    asked = {key: value for key, value in ASK.items() if key != "max_tokens"} | {"system": "Be kind."}
    counted = claude.count_tokens(**asked).input_tokens
    usage = claude.create(max_tokens=4, **asked).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens > 10


def test_a_stop_sequence_ends_the_answer_and_is_named(claude):
    with claude.stream(**ASK, stop_sequences=["zzz", "language"], extra_body={"temperature": 0}) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "language")
    assert "I am Tiny" in message.content[0].text
    assert "language" not in message.content[0].text
