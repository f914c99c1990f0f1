"""Schemas and grammars that take too much: a 400 that says so, and nobody else waits."""

import asyncio
import json
import os
import resource
import signal

import pytest
from fake_client import CHAT, Wire

from cobali_ray.api.call.judges import MAX_OPEN_CHARS, Judges, Verdicts
from cobali_ray.backend.grammar import ConstraintText
from cobali_ray.errors import InvalidParameterError

ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
WAIT_S = 60


def mutual(n):
    """Return definitions, each of which may be any two others."""
    defs = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 7 + k) % n}"} for k in range(1, 4)]} for i in range(n)
    }
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def lists(n):
    """Return the same, where each may be a list, too."""
    schema = mutual(n)
    for i, one in enumerate(schema["$defs"].values()):
        one["anyOf"].append({"type": "array", "items": {"$ref": f"#/$defs/d{(i + 1) % n}"}})
    return schema


def nested(depth):
    """Return an object of objects."""
    schema = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def dear(n):
    """Return a schema that takes minutes, another one for each number."""
    return {"type": "integer", "multipleOf": 1_999_993 + 2 * n}


BOMBS = [
    pytest.param({"json_schema": dear(0)}, "more than 2 s", id="multiple-of"),
    pytest.param({"regex": "(a?){1000}a{1000}"}, "too many expressions", id="optional-repeats"),
    pytest.param({"json_schema": {"$ref": "#"}}, "#: no answer can fit it", id="ref-to-itself"),
    pytest.param(
        {
            "json_schema": {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a",
            }
        },
        "#: no answer can fit it",
        id="ref-cycle",
    ),
    pytest.param({"json_schema": mutual(300)}, "#: no answer can fit it", id="mutual"),
    pytest.param({"json_schema": lists(300)}, "#: Parser Error: Current row has", id="mutual-lists"),
    pytest.param({"grammar": "start: A\nA: /[^\\s\\S]/"}, "no answer can fit it", id="nothing-matches"),
    pytest.param(
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}]},
        "circular references",
        id="tool",
    ),
    pytest.param(
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": nested(70)}}]},
        "recursion limit",
        id="nested-tool",
    ),
]


@pytest.mark.parametrize(("fields", "says"), BOMBS)
async def test_what_takes_too_much_is_refused_by_name(post, client, fields, says):
    wire = await post(CHAT, ASK | fields)
    error = wire.json["error"]
    assert (wire.status, error["param"].split("[")[0]) == (400, next(iter(fields)))
    assert says in error["message"]
    assert client.requests == []
    assert (await post(CHAT, ASK | {"json_schema": {"type": "null"}})).status == 200
    assert len(client.requests) == 1


async def test_nobody_waits_for_what_another_tenant_has_judged(make_app):
    """A bomb takes seconds of a processor; four of one key come before a schema of another."""
    app = make_app(api_keys=("left", "right"))

    def sent(schema, key):
        wire = Wire(app, CHAT, ASK | {"json_schema": schema}, headers=[("authorization", f"Bearer {key}")])
        return asyncio.ensure_future(wire.run())

    bombs = [sent(dear(1 + i), "left") for i in range(3)]
    await asyncio.sleep(0)
    small = [await asyncio.wait_for(sent({"const": i}, "right"), WAIT_S) for i in range(3)]
    assert [wire.status for wire in small] == [200] * 3
    assert not bombs[-1].done(), "it has its turn after the others of its tenant"
    for bomb in bombs:
        bomb.cancel()
    await asyncio.gather(*bombs, return_exceptions=True)


async def test_a_verdict_is_remembered_and_its_field_is_not():
    judges = Judges()
    case = ConstraintText("json_schema", json.dumps({"type": "array", "maxItems": 1, "uniqueItems": True}))
    strict, broken = case._replace(strict=True), ConstraintText("regex", "(?=a)b")
    cases = (case, strict, broken)
    assert [judges.recall("", one) for one in cases] == [None] * 3
    await judges.judge("", cases)
    grammar, ignored = judges.recall("", case)
    assert (ignored, "array" in grammar) == (("uniqueItems",), True)
    assert judges.recall("", strict).startswith("#/uniqueItems: ")
    assert "look-around" in judges.recall("", broken)


async def test_what_takes_too_much_memory_is_refused_for_that():
    judges = Judges()
    await judges.judge("", [ConstraintText("regex", "a")])
    (process,) = judges._idle
    resource.prlimit(process.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    await judges.judge("", [case := ConstraintText("regex", "a" * 15_000_000)])
    assert "more than 1024 MiB to compile" in judges.recall("", case)
    await judges.judge("", [other := ConstraintText("regex", "b")])
    assert judges.recall("", other)[1] == ()


async def test_a_process_that_was_killed_while_idle_is_no_verdict_on_what_comes_next():
    judges, first, second = Judges(), ConstraintText("regex", "a+"), ConstraintText("regex", "b+")
    await judges.judge("a", [first])
    (process,) = judges._idle
    os.kill(process.pid, signal.SIGKILL)
    process._process.wait(WAIT_S)
    await judges.judge("a", [second])
    assert not isinstance(judges.recall("a", second), str)
    assert judges.recall("a", second) is not None


async def test_a_verdict_is_known_to_whose_it_is():
    judges, case = Judges(), ConstraintText("regex", "a+")
    await judges.judge("alice", [case])
    assert judges.recall("alice", case) is not None
    assert judges.recall("bob", case) is None
    await judges.judge("bob", [case])
    assert judges.recall("bob", case) == judges.recall("alice", case)


def test_a_body_with_more_schemas_than_are_remembered_is_not_read_for_ever():
    verdicts = Verdicts(Judges(), "")
    for i in range(9):
        verdicts.judge(ConstraintText("regex", f"{i}" * (MAX_OPEN_CHARS // 8)))
    with pytest.raises(InvalidParameterError, match="tools have schemas of more than"):
        verdicts.close()


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "const": {"a": 1}}}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, ASK | {"json_schema": {"const": "chat"}}, id="chat"),
        pytest.param(CHAT, ASK | {"tools": [TOOL]}, id="tools"),
        pytest.param("/v1/completions", {"prompt": "hi", "json_schema": {"const": "text"}}, id="completion"),
        pytest.param("/apply-template", ASK | {"json_schema": {"const": "prompt"}}, id="prompt"),
    ],
)
async def test_a_prompt_that_waits_for_a_verdict_is_tokenised_once(post, client, path, body):
    assert (await post(path, body)).status == 200
    assert sum("hi" in text for text, *_ in client.tokenized) == 1


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000, reason="too few files may be open")
async def test_a_process_of_a_server_with_many_connections_is_heard():
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        case = ConstraintText("regex", "[ab]{3}")
        judges = Judges()
        await judges.judge("a", [case])
        assert judges.recall("a", case) is not None
    finally:
        for file in files:
            os.close(file)
