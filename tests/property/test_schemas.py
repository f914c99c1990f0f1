"""Schemas of others and made ones: every finished answer is valid, every key that is not held is named."""

import json

import pytest

from cobali_ray.backend.grammar import check
from cobali_ray.errors import InvalidParameterError
from tests.schemas.answers import Judge, problem_of
from tests.schemas.collections import iglu_central, json_schema_test_suite, made

N_ANSWERS = 1
N_MADE = 25
COLLECTIONS = {"iglu-central": lambda: iglu_central()[::8], "made": lambda: made(N_MADE)}


@pytest.fixture(scope="module")
def judge():
    return Judge()


@pytest.mark.parametrize("name", COLLECTIONS)
def test_finished_answers_are_valid_and_keys_that_are_not_held_are_named(judge, name):
    """With random logits, as every way of sampling draws them; `python -m tests.schemas` does more of it."""
    schemas = COLLECTIONS[name]()
    verdicts = [judge.judge(schema, seed=i, n_answers=N_ANSWERS) for i, schema in enumerate(schemas)]
    assert [error for verdict in verdicts for error in verdict.errors] == []
    assert len(verdicts) >= 25
    taken = [verdict for verdict in verdicts if verdict.n_answers]
    assert len(taken) >= 0.98 * len(verdicts)
    assert sum(verdict.n_finished for verdict in taken) >= 0.9 * N_ANSWERS * len(taken)


def test_no_answer_is_wrong_by_the_json_schema_test_suite(judge):
    """Under each schema that `strict` takes: what the suite calls invalid cannot be written, nor drawn."""
    wrong, n_taken = [], 0
    for i, case in enumerate(json_schema_test_suite()):
        schema, invalid = case["schema"], [test for test in case["tests"] if not test["valid"]]
        try:
            grammar = check("p", "json_schema", json.dumps(schema), strict=True).grammar
        except InvalidParameterError:
            continue
        n_taken += 1
        said = f"{case['file']}: {case['description']}"
        for test in invalid:
            spelt = {json.dumps(test["data"]), json.dumps(test["data"], ensure_ascii=False)}
            if any(takes_whole(judge.matcher(grammar), text) for text in spelt):
                wrong.append(f"{said}: {test['description']}")
        if "\\p{" in str(
            schema
        ):  # Python's expressions, by which answers are validated, have no such classes
            continue
        answers = filter(None, judge.answers(grammar, seed=i, n_answers=1))
        problems = ((answer, problem_of(schema, answer, ())) for answer in answers)
        wrong += [f"{said}: {problem} in {answer!r}" for answer, problem in problems if problem]
    assert wrong == []
    assert n_taken >= 160


def takes_whole(matcher, text):
    for token in text.encode("utf-8", "surrogatepass"):
        if not matcher.allows(token):
            return False
        matcher.take(token)
    return matcher.may_end


CONTROLS = [
    pytest.param({"const": "a\u0001b"}, "#/const", id="const"),
    pytest.param({"enum": ["a", "\u0000"]}, "#/enum", id="enum"),
    pytest.param({"properties": {"const": {"enum": ["\u001f"]}}}, "#/properties/const/enum", id="property"),
    pytest.param({"anyOf": [{"type": "null"}, {"const": [{"k": "\u007f"}]}]}, "#/anyOf/1/const", id="nested"),
    pytest.param(
        {"$defs": {"a": {"const": "\u0002"}}, "$ref": "#/$defs/a"}, "#/$defs/a/const", id="definition"
    ),
]


@pytest.mark.parametrize(("schema", "place"), CONTROLS)
@pytest.mark.parametrize("strict", [False, True])
def test_a_control_character_that_no_answer_can_have_is_refused_where_it_stands(schema, place, strict):
    with pytest.raises(InvalidParameterError, match="control character") as caught:
        check("p", "json_schema", json.dumps(schema), strict=strict)
    assert f"p cannot be used: {place}: " in str(caught.value)


def test_other_control_characters_are_written(judge):
    schema = {
        "type": "object",
        "properties": {"enum": {"const": "\n\t\b\f\r"}, "k\u0001": {"const": {"v\u0001": 1}}},
        "required": ["enum", "k\u0001"],
        "additionalProperties": False,
    }
    grammar = check("p", "json_schema", json.dumps(schema), strict=True, compact=True).grammar
    whole = {"enum": "\n\t\b\f\r", "k\u0001": {"v\u0001": 1}}
    assert takes_whole(judge.matcher(grammar), json.dumps(whole, separators=(",", ":")))


@pytest.mark.parametrize(
    ("schema", "answer", "ignored"),
    [
        pytest.param({"type": "integer", "maximum": 3}, b"4", (), id="bound"),
        pytest.param({"type": "string"}, b'"a', (), id="no-json"),
        pytest.param({"maxItems": 1, "uniqueItems": True}, b"[1,1]", ("uniqueItems",), id="other-key"),
        pytest.param({"type": "string", "format": "ipv4"}, b'"1.2.3.400"', (), id="format"),
        pytest.param({"anyOf": [{"const": 1}, {"const": 2}]}, b"3", ("not",), id="branches"),
    ],
)  # fmt: skip
def test_the_second_opinion_sees_what_is_wrong(schema, answer, ignored):
    assert problem_of(schema, answer, ignored) is not None


def test_the_second_opinion_lets_pass_what_was_said_not_to_be_held():
    assert problem_of({"type": "array", "uniqueItems": True}, b"[1,1]", ("uniqueItems",)) is None
    assert problem_of({"type": "string", "format": "date"}, b'"1807-02-29"', ()) is None
    assert problem_of({"if": {}, "then": {"maxLength": 1}}, b'"ab"', ("if", "then")) is None


@pytest.mark.parametrize("bound", [0, 7])
def test_where_an_exclusive_bound_is_not_held(judge, bound):
    """What the documentation says of llguidance; if this fails, it holds them now and both can go."""
    schema = {"type": "number", "exclusiveMinimum": bound, "maximum": bound + 0.5}
    grammar = check("p", "json_schema", json.dumps(schema), strict=True).grammar
    matcher = judge.matcher(grammar)
    matcher.take(ord(str(bound)))
    assert matcher.may_end
