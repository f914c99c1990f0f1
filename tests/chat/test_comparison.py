"""Templates of well-known models are rendered as transformers renders them, or differ for a named reason."""

import pytest
from comparison import CONVERSATIONS, DIFFERENCES, DOCUMENT, both, document, sources, template_of, theirs

SOURCES = sources()
N_TEMPLATES = 70


def test_the_templates_are_all_there():
    assert len(SOURCES) == N_TEMPLATES
    assert len(CONVERSATIONS) == 12
    assert DIFFERENCES.keys() <= SOURCES.keys()


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_is_rendered_as_transformers_does(name):
    reason, excepted = DIFFERENCES.get(name, (None, ()))
    for conversation in CONVERSATIONS:
        here, there = both(name, conversation)
        if conversation not in excepted:
            assert here.text == there.text, conversation
            assert there.refusal in here.refusal, "both refuse, and for the same reason"
            continue
        assert here.text is not None, conversation
        assert reason.refusal in there.refusal, conversation
        if reason.amend is not None:
            assert here.text == theirs(template_of(name), conversation, reason.amend).text, conversation


def test_the_table_is_current():
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == document(), "run .venv/bin/python -m tests.chat.comparison"
