"""Tools that are offered, answers held to calls of them, and the calls that answers are read as."""

from formats import calls_of, split
from held import Vocabulary, controls_of
from jsonschema import Draft202012Validator

from cobali_ray.backend.grammar import check
from cobali_ray.chat.answer_events import CallBroken, ParsedAnswer
from cobali_ray.chat.call_grammar import call_grammar


def tool(name, properties, required=(), **more):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


BOUNDED = [
    tool(
        "get_weather",
        {
            "city": {"type": "string", "maxLength": 4},
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        },
        required=["city", "unit"],
    ),
    tool(
        "search_web",
        {
            "safe": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "options": {"$ref": "#/$defs/options"},
        },
        required=["options", "tags"],
    ),
    tool("now", {}),
]
BOUNDED[1]["function"]["parameters"]["$defs"] = {
    "options": {
        "type": "object",
        "properties": {"deep": {"type": "boolean"}, "n": {"enum": [1, 2.5]}},
        "required": ["deep"],
        "additionalProperties": False,
    }
}
VALIDATORS = {
    one["function"]["name"]: Draft202012Validator(
        one["function"]["parameters"] | {"additionalProperties": False}
    )
    for one in BOUNDED
}
CITY = [tool("get_weather", {"city": {"type": "string"}}, required=["city"])]


def hold(form, vocabulary, tools=BOUNDED, prompt="", **how):
    return call_grammar(form, tools, check=check, special=vocabulary.special, prompt=prompt, **how)


def only(name):
    """Return what asks for one call of this tool."""
    return {"names": {name}, "required": True, "parallel": False}


def vocabulary_of(form, *, special=True):
    return Vocabulary(controls_of(form) if special else ())


def calls_in(form, text, tools=BOUNDED):
    """Return the calls that an answer is read as. Nothing else may be in it."""
    events = split(form, "", [text], tools)
    assert not any(isinstance(event, CallBroken) for event in events), text
    answer = ParsedAnswer().add(events)
    assert not answer.content, text
    found = calls_of(answer)
    for name, arguments in found:
        if tools is BOUNDED:
            VALIDATORS[name].validate(arguments)
    return found
