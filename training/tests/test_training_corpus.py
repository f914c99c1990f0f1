"""The generated corpus: its answers are right by its own checkers, and what is held out stays out."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from functools import cache
from random import Random

import pytest

from training.corpus import checks, server
from training.corpus.blocks import read_blocks, read_wordings
from training.corpus.build import (
    SHARES,
    drawn_set,
    forbidden_questions,
    held_out_set,
    is_forbidden,
    one_of,
    plain_set,
    sources,
    training_examples,
    typed_set,
)
from training.corpus.example import KINDS
from training.corpus.phrase import PatternError, expansions, fill, normal, parse, say
from training.corpus.source import held_out, normal_texts, trained
from training.corpus.sums import is_held_pair
from training.corpus.surface import voiced
from training.corpus.template import as_turns, template
from training.corpus.tool import Tool
from training.corpus.tools import stranger_set

TOOLS = [Tool(name=name, parameters={"a": {"type": "integer"}}).as_offered() for name in "fg"]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SOURCES = [source for some in sources().values() for source in some]


@cache
def corpus():
    """Return many examples, generated once."""
    return list(training_examples(4_000, 3))


def split_of(source):
    return getattr(source, "split", "") or source.name


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        pytest.param("a (b|c)", {"a b", "a c"}, id="choice"),
        pytest.param("a[ b]", {"a", "a b"}, id="optional"),
        pytest.param("[a|b] c", {"a c", "b c", "c"}, id="optional-choice"),
        pytest.param("(a|(b|c) d)", {"a", "b d", "c d"}, id="nested"),
        pytest.param("is <it>[ ]?", {"is <it>?"}, id="slots-stay-and-gaps-close"),
    ],
)
def test_patterns(pattern, said):
    assert {say(pattern, Random(seed)) for seed in range(60)} == said


@pytest.mark.parametrize("pattern", ["(a", "a)", "[a|b", "a]"])
def test_an_open_bracket_is_an_error(pattern):
    with pytest.raises(PatternError, match=r"bracket|stray"):
        parse(pattern)


def test_a_slot_without_a_value_is_an_error():
    with pytest.raises(KeyError):
        fill("<it>", {})


def test_noise_leaves_slots_alone():
    texts = {voiced("explain <thing> to somebody", Random(seed), slips=True) for seed in range(400)}
    assert all("<thing>" in text for text in texts)
    assert len(texts) > 60


def test_names_of_sources_are_different():
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    assert set(SHARES) == set(KINDS) == set(sources())


@pytest.mark.thorough
def test_every_answer_passes_its_own_check():
    rng = Random(1)
    for source, held in itertools.product(SOURCES, (False, True)):
        if held and not held_out(split_of(source), source.wordings):
            continue
        for _ in range(4):
            example = source.make(rng, held=held)
            assert checks.passes(example.check, example.answer), example
            roles = [turn.role for turn in example.turns[example.alone :]]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert not example.has_tools or example.turns[0].role == "system"
            assert example.question.strip(), source.name


def test_wordings_are_split_once_and_for_all():
    for source in SOURCES:
        name = split_of(source)
        spared, used = held_out(name, source.wordings), trained(name, source.wordings)
        assert not set(spared) & set(used)
        assert set(spared) | set(used) <= set(source.wordings)
        assert len(spared) + len(used) >= 0.8 * len(source.wordings), name
        assert used or source.further, name
        assert len(set(source.wordings)) == len(source.wordings), name


def test_the_held_out_set_is_large_and_always_the_same():
    questions = held_out_set()
    per_kind = Counter(example.kind for example in questions)
    assert len(questions) >= 300
    assert set(per_kind) == set(KINDS)
    assert min(per_kind.values()) >= 25
    assert per_kind["server"] >= 150
    drawn_set.cache_clear()
    typed_set.cache_clear()
    held_out_set.cache_clear()
    assert held_out_set() == questions


def test_what_is_typed_for_the_evaluation_is_all_asked():
    typed = read_wordings("unseen.txt", "!")
    assert set(typed) <= {source.name for source in SOURCES}
    assert held_out_set()[: len(drawn_set())] == drawn_set()
    assert len(typed_set()) == sum(map(len, typed.values())) >= 60
    assert len(plain_set()) == 12
    for example in (*typed_set(), *plain_set()):
        assert checks.passes(example.check, example.answer) or example.kind == "plain", example
        assert "<" not in example.question


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        pytest.param("Calc 31 + 8, for me!", True, id="other-operands-and-marks"),
        pytest.param("what's seven plus five?", True, id="a-stranger-s"),
        pytest.param("what's seven plus six?", False, id="another-sum"),
    ],
)
def test_an_unseen_wording_is_forbidden_whatever_fills_it(text, forbidden):
    assert is_forbidden(text) == forbidden


def test_no_unseen_wording_is_so_bare_that_it_forbids_others():
    for wordings in read_wordings("unseen.txt", "!").values():
        for wording in wordings:
            assert len(normal(re.sub(r"<\w+>", "", wording)).split()) >= 2, wording


@pytest.mark.thorough
def test_nothing_held_out_is_trained_on():
    asked = {
        normal(example.question) for example in (*held_out_set(), *plain_set()) if len(example.turns) == 2
    }
    assert asked == forbidden_questions()
    said = {normal(turn.text) for example in corpus() for turn in example.turns if turn.role == "user"}
    assert not asked & said
    assert not [text for text in said if is_forbidden(text)]


@pytest.mark.thorough
def test_held_out_wordings_are_never_said_in_training():
    shared = {}
    for source in SOURCES:
        shared.setdefault(split_of(source), source)
    for name, source in shared.items():
        further = getattr(source, "further", ())
        kept = trained(name, source.wordings, further)
        assert normal_texts(held_out(name, source.wordings)).isdisjoint(normal_texts(kept)), name


def test_further_wordings_change_nothing_of_what_is_held_out():
    wordings = tuple(f"wording {i}?" for i in range(9))
    kept = trained("name", wordings, ("another one?", "wording (1|2|3|4|5|6|7|8|0)?"))
    assert set(kept) == {*trained("name", wordings), "another one?"}


def test_held_out_sums_are_never_computed_in_training():
    rng = Random(5)
    for _ in range(3000):
        example = one_of("sums", rng)
        if example.source in {"sums.add", "sums.gain"}:
            a, b = (int(part) for part in example.answer.partition(" =")[0].split(" + "))
            assert not is_held_pair("+", a, b), example


def test_the_same_seed_gives_the_same_corpus():
    one, two, other = (list(training_examples(300, seed)) for seed in (4, 4, 5))
    assert one == two
    assert one != other


def test_all_kinds_are_in_it_about_as_often_as_wanted():
    n = Counter(example.kind for example in corpus())
    for kind, share in SHARES.items():
        assert abs(n[kind] / len(corpus()) - share / sum(SHARES.values())) < 0.03, kind


def test_the_server_is_explained_in_a_few_sentences():
    blocks = server.blocks()
    assert len({block.answer for block in blocks}) == len(blocks) >= 150
    for block in blocks:
        assert block.terms, block.name
        assert len(block.answer.split()) <= 60, block.name
        assert not set("*<>") & set(block.answer.replace("<unk>", "")), block.name
    assert all(len(block.bullets) in {0, 3} for block in blocks)
    assert len(server.pointed()) >= 12


@pytest.mark.thorough
def test_no_question_means_two_things():
    meant = {}
    for source in sources()["server"]:
        if split_of(source) == "server.word":
            continue
        for wording in (*source.wordings, *source.further):
            for text in expansions(wording):
                meant.setdefault(normal(text), set()).add(source.name)
    assert {text: names for text, names in meant.items() if len(names) > 1} == {}


def test_no_word_has_two_definitions():
    n = Counter(alias for block in server.defined() for alias in block.aliases)
    assert [alias for alias, times in n.items() if times > 1] == []


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        pytest.param(checks.exact("Paris"), "paris.", "Paris, France", id="exact"),
        pytest.param(checks.verbatim("LEMON"), "LEMON", "Lemon", id="verbatim"),
        pytest.param(checks.has("not know|cannot", "small"), "I cannot: too small.", "I know it.", id="has"),
        pytest.param(checks.has("tick"), "A tick.", "A ticket.", id="has-whole-words"),
        pytest.param(checks.number(12), "7 + 5 = 12", "12 = 7 + 4", id="number"),
        pytest.param(checks.json_value({"a": 1}), '{"a": 1}', 'Here: {"a": 1}', id="json"),
        pytest.param(checks.json_record({"a": "x"}, "n"), '{"n": 7, "a": "x"}', '{"a": "x", "n": "7"}',
            id="record"),
        pytest.param(checks.json_record({"a": "x"}, "n"), '{"a": "x", "n": 7}', '{"a": "x",\n"n": 7}',
            id="one-line"),
        pytest.param(checks.items(("a", "b")), "a, b.", "b, a", id="items"),
        pytest.param(checks.some_of(("x", "y", "z"), 2, mark="1"), "1. x\n2. z", "1. x\n2. x", id="some-of"),
        pytest.param(checks.some_of(("x", "y", "z"), 2, mark="-"), "- x\n- z", "- x\n- q", id="bulleted"),
        pytest.param(checks.story("fox"), "A fox ran. It fell. It rose.", "A fox. A fox. A fox.", id="story"),
        pytest.param(checks.haiku("rain", ("Rain", "b", "c")), "Rain\nb\nc", "Rain\nb\nb", id="haiku"),
        pytest.param(checks.bullets(2, "a", "b"), "- a\n- b", "- a\n- a", id="bullets"),
        pytest.param(checks.one_sentence("Small gears grind"), "Gears grind, small.", "Gears. Grind. Small.",
            id="one"),
        pytest.param(checks.sentences(2, "a", "b"), "It is a. It is b.", "It is a. It is a.", id="sentences"),
        pytest.param(checks.calls([("f", {"a": 1})], TOOLS), CALL, CALL.replace("1", "2"), id="arguments"),
        pytest.param(checks.calls([("f", {"a": 1})], TOOLS), CALL, CALL.replace("f", "g"), id="function"),
        pytest.param(checks.calls([("f", {"a": 1})], TOOLS), CALL, f"Sure! {CALL}", id="call-and-words"),
        pytest.param(checks.calls([("f", {"a": 1})], TOOLS), CALL, f"{CALL}\n{CALL}", id="called-twice"),
        pytest.param(checks.calls([("f", {"a": 1})] * 2, TOOLS), f"{CALL}\n{CALL}", CALL, id="called-once"),
    ],
)  # fmt: skip
def test_checkers(check, right, wrong):
    assert checks.passes(check, right)
    assert not checks.passes(check, wrong)
    assert json.loads(json.dumps(check.facts)), "a check is data"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("tick\n= x", r"\[name\]", id="no-name"),
        pytest.param("[tick]\n? what", "0 answers", id="no-answer"),
        pytest.param("[tick]\n% what\n= x", "no known mark", id="no-mark"),
    ],
)
def test_a_table_typed_wrongly_is_an_error(text, message, tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "one.txt").write_text(text)
    monkeypatch.setattr("training.corpus.blocks.resources.files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=message):
        read_blocks("one.txt")


def offered(example):
    """Return the tools that an example's system turn offers, as its lines say."""
    lines = example.turns[0].text.splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"name": ')]


def test_a_conversation_with_tools_is_what_the_template_makes_of_it():
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1\n2"},
    ]
    turns = as_turns(chat, TOOLS)
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "user"]
    rendered = template().render(chat, tools=TOOLS)
    assert template().render([turn.as_message() for turn in turns]) == rendered, "so it can be sent in words"


def test_functions_and_parameters_of_the_evaluation_are_never_trained():
    asked = [example for example in held_out_set() if example.kind == "tools"]
    assert len(asked) >= 100
    wanted = [
        call for example in asked if example.check.name == "calls" for call in example.check.facts["wanted"]
    ]
    called = {name for name, _ in wanted}
    parameters = {name for _, arguments in wanted for name in arguments}
    tools = [tool for example in corpus() if example.has_tools for tool in offered(example)]
    names = {tool["name"] for tool in tools}
    assert len(called) > 40
    assert len(names) > 600
    assert not called & names
    # A timer takes what the question says.
    assert parameters & {name for tool in tools for name in tool["parameters"]} <= {"minutes", "seconds"}


def test_what_a_stranger_asks_of_tools_can_be_answered_and_is_not_trained():
    assert len(stranger_set()) == 12
    asked = {normal(example.question) for example in stranger_set()}
    said = {normal(turn.text) for example in corpus() for turn in example.turns}
    assert not asked & said
    for example in stranger_set():
        assert checks.passes(example.check, example.answer), example


def test_tools_are_also_offered_where_none_is_for_the_question():
    examples = corpus()
    idle = [example for example in examples if example.has_tools and example.kind != "tools"]
    assert 0.015 < len(idle) / len(examples) < 0.06
    assert all(offered(example) and "<tool_call>" not in example.answer for example in idle)
    kinds = Counter(len(offered(example)) for example in examples if example.kind == "tools")
    assert set(kinds) == {1, 2, 3, 4}


def test_every_argument_was_asked_for_and_every_tool_has_a_name_of_its_own():
    for example in corpus():
        tools = {tool["name"]: tool["parameters"] for tool in offered(example)} if example.has_tools else {}
        assert len(tools) == len(offered(example)) or not example.has_tools
        for name, arguments in example.check.facts.get("wanted", ()) if example.check.name == "calls" else ():
            assert set(arguments) <= set(tools[name]), example
            for key, value in arguments.items():
                assert value in tools[name][key] if isinstance(tools[name][key], list) else True, example


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        pytest.param({"setting x": True, "default x": 12.0}, "Yes: 12.", id="it-has-it"),
        pytest.param({"setting x": False, "default x": None}, "No.", id="it-has-not"),
    ],
)
def test_a_statement_about_the_server_follows_from_facts(facts, said, tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "one.txt").write_text("[x]\n? is it?\n@ setting x\n= *Yes*: {x}.\n! *No*.")
    monkeypatch.setattr("training.corpus.blocks.resources.files", lambda _: tmp_path)
    monkeypatch.setattr("training.corpus.server_facts.recorded_facts", lambda: facts)
    (block,) = read_blocks("one.txt")
    assert block.answer == said


def test_a_statement_that_lost_its_ground_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "one.txt").write_text("[x]\n? is it?\n@ not setting x\n= *Never*.")
    monkeypatch.setattr("training.corpus.blocks.resources.files", lambda _: tmp_path)
    monkeypatch.setattr("training.corpus.server_facts.recorded_facts", lambda: {"setting x": True})
    with pytest.raises(ValueError, match=r"\[x\] is no longer true.*not setting x"):
        read_blocks("one.txt")


def test_the_page_of_an_agent_stays_the_beginning_of_its_own_conversation():
    agents = [example for example in corpus() if example.kind == "agents"]
    assert len(agents) > 15
    for example in agents:
        assert example.alone
        assert example.turns[0].role == "system"
        assert [turn.role for turn in example.turns].count("system") == 1
