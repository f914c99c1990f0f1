"""Schemas that llguidance refuses: the part that is to blame is named, in few compilations."""

import json
import random

import pytest

from cobali_ray.backend.blame import N_TRIES, place_of
from cobali_ray.backend.grammar import MAX_CHARS, check
from cobali_ray.errors import InvalidParameterError

FINE = {"type": "object", "properties": {"a": {"type": "string", "format": "date"}, "b": {"minimum": 1}}}
ODD = {"type": "array", "uniqueItems": True}
CHOICES = {"oneOf": [{"type": "string"}, {"minLength": 1}]}


def properties(**schemas):
    return {"type": "object", "properties": schemas, "required": list(schemas)[:1]}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        pytest.param({"not": {"type": "string", "enum": ["a"]}}, "#/not", id="key-and-not-what-is-in-it"),
        pytest.param(
            properties(a=FINE, b=properties(c=ODD)), "#/properties/b/properties/c/uniqueItems", id="deep"
        ),
        pytest.param(properties(a=CHOICES, b=FINE), "#/properties/a/oneOf", id="choices"),
        pytest.param(
            {"anyOf": [FINE, {"oneOf": [{"const": 1}, CHOICES]}]}, "#/anyOf/1/oneOf/1/oneOf", id="lists"
        ),
        pytest.param(
            properties(a={"$ref": "#/$defs/x"})
            | {"$defs": {"w": ODD, "x": {"items": {"format": "far"}}, "y": FINE}},
            "#/$defs/x/items/format",
            id="behind-a-reference",
        ),
        pytest.param(
            {"$ref": "#/$defs/t", "$defs": {"t": properties(t={"$ref": "#/$defs/t"}, x=ODD)}},
            "#/$defs/t/properties/x/uniqueItems",
            id="in-a-circle",
        ),
        pytest.param(
            properties(a=FINE | {"minProperties": 1}),
            "#/properties/a (properties, minProperties)",
            id="two-keys",
        ),
        pytest.param(properties(**{"a/b~c": ODD}), "#/properties/a~1b~0c/uniqueItems", id="escaped"),
        pytest.param(
            {"patternProperties": {"(?=a)": FINE, "b": FINE}},
            "#/patternProperties/(?=a)",
            id="pattern-as-key",
        ),
        pytest.param(properties(a=ODD, b=ODD, c=CHOICES), "#/properties/a/uniqueItems", id="several"),
        pytest.param(
            {"type": "integer", "minimum": 3, "maximum": 2}, "# (type, minimum, maximum)", id="unsatisfiable"
        ),
        pytest.param({"$schema": "http://example.org/draft", "type": "object"}, "#/$schema", id="kept-key"),
        pytest.param({"$ref": "https://example.org/x"}, "#/$ref", id="elsewhere"),
    ],
)
def test_the_part_that_is_to_blame_is_named(schema, place):
    with pytest.raises(InvalidParameterError) as caught:
        check("p", "json_schema", json.dumps(schema), strict=True)
    assert str(caught.value).startswith(f"p cannot be used: {place}: ")


def test_what_is_nested_too_deeply_is_refused_in_the_whole():
    schema = FINE
    for _ in range(300):
        schema = properties(a=schema)
    with pytest.raises(InvalidParameterError, match="p cannot be used: #: recursion limit"):
        check("p", "json_schema", json.dumps(schema))
    with pytest.raises(InvalidParameterError, match="p cannot be used: #: it is nested too deeply"):
        check("p", "json_schema", '{"not":' * 5000 + "{}" + "}" * 5000)


class Refusal:
    """Says no to each schema whose text has a word, or several; counts."""

    def __init__(self, *words):
        self._words, self.n = words, 0

    def __call__(self, text):
        self.n += 1
        return "no" if all(word in text for word in self._words) else ""


def large(rng, n):
    """Return a schema of some size with one bad key, and where that is."""
    at, path, node = rng.randrange(n), [], {}
    root = node
    for i in range(n):
        names = [f"p{k}" for k in range(rng.randrange(1, 9))]
        node["properties"] = {name: {"type": "string", "maxLength": i} for name in names}
        path += ["properties", rng.choice(names)]
        node["properties"][path[-1]] = inner = {}
        node = inner
        if i == at:
            node["bad"], found = 1, [*path, "bad"]
    return root, "#/" + "/".join(found)


@pytest.mark.parametrize("seed", range(10))
def test_a_large_schema_takes_few_compilations(seed):
    schema, place = large(random.Random(seed), 8)
    refusal = Refusal("bad")
    assert place_of(schema, refusal) == place
    assert refusal.n <= N_TRIES


@pytest.mark.parametrize("size", [50, 20_000])
def test_the_search_ends_where_it_costs_too_much(size):
    """What it found by then is named: here, that all of these belong together."""
    words = [f"w{i}w" for i in range(200)]
    schema = properties(a=FINE, b={"enum": [word * (size // 600 + 1) for word in words]})
    refusal = Refusal(*words)
    assert place_of(schema, refusal) == "#/properties/b/enum"
    assert refusal.n <= N_TRIES + 1


def test_a_schema_that_is_too_long_says_what_to_do():
    with pytest.raises(InvalidParameterError, match=r"p is too long: .*400,000; shorten it"):
        check("p", "json_schema", json.dumps({"enum": ["x" * MAX_CHARS]}))
