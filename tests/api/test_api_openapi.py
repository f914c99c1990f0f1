"""The OpenAPI document says what the routes do."""

import json

import jsonschema
import pytest
from fake_client import ASK, CHAT, Wire
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.errors import LoadingError
from cobali_ray.settings import ApiSettings

KEY = ("x-api-key", "right")
GOOD = {
    "/v1/chat/completions": ASK,
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": ASK | {"max_tokens": 5},
    "/v1/messages/count_tokens": ASK,
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["ho"]},
    "/rerank": {"query": "hi", "texts": ["ho"]},
    "/embedding": {"content": "hi"},
    "/embeddings": {"input": "hi"},
    "/reranking": {"query": "hi", "documents": ["ho"]},
    "/v1/reranking": {"query": "hi", "documents": ["ho"]},
    "/api/embed": {"input": "hi"},
    "/api/embeddings": {"prompt": "hi"},
    "/v1/score": {"text_1": "hi", "text_2": ["ho"]},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/responses/{response_id}/cancel": {},
    "/v1/chats/{chat_id}": {"version": 0, "summary": "", "data": ""},
    "/v1/conversations": {},
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/v1/conversations/{conversation_id}/items": {"items": []},
    "/api/chat": ASK,
    "/api/generate": {"prompt": "hi"},
    "/api/show": {"model": "fake"},
    "/api/pull": {},
    "/api/push": {},
    "/api/create": {},
    "/api/copy": {},
    "/v1/models/load": {"model": "fake"},
    "/v1/downloads": {"model": "hf://owner/repo"},
    "/v1/models/unload": {"model": "fake"},
    "/v1/pause": {},
    "/v1/resume": {},
    "/completion": {"prompt": "hi"},
    "/completions": {"prompt": "hi"},
    "/chat/completions": ASK,
    "/apply-template": ASK,
    "/v1/chat/completions/input_tokens": ASK,
    "/infill": {"input_prefix": "hi"},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [0]},
    "/slots/{id_slot}": {"filename": "a"},
    "/lora-adapters": {},
    "/v1/files": {},
    "/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"},
    "/v1/batches/{batch_id}/cancel": {},
    "/v1/messages/batches": {"requests": [{"custom_id": "a", "params": {}}]},
    "/v1/messages/batches/{batch_id}/cancel": {},
}
ADDRESSES = {
    "/v1/models/{model_id}": ["/v1/models/fake", "/v1/models/nope"],
    "/slots/{id_slot}": ["/slots/0?action=save", "/slots/0"],
    "/ui/{path}": ["/ui/app.js", "/ui/base.css", "/ui/no"],
}
ENDLESS = {"/debug/stream"}


@pytest.fixture
def keyed(make_app):
    return make_app(api_keys=("right",))


@pytest.fixture(scope="module")
def document():
    """The document of a server with keys; it takes a tenth of a second."""
    settings = ApiSettings(api_keys=("right",))
    return json.loads(json.dumps(build_api(Fleet([]), settings).openapi()))


@pytest.fixture(scope="module")
def open_document():
    """The one of a server without."""
    return build_api(Fleet([]), ApiSettings()).openapi()


@pytest.fixture(scope="module")
def registry(open_document):
    """The same as a place where schemas refer to each other, which is looked through once."""
    return Registry().with_resource("urn:api", DRAFT202012.create_resource(open_document)).crawl()


def operations(document):
    return [(path, verb, one) for path, verbs in document["paths"].items() for verb, one in verbs.items()]


def declared(operation, wire):
    """Say whether the document knows the status and, if there is a body, its type."""
    answer = operation["responses"].get(str(wire.status))
    return answer is not None and (
        not wire.body or any(wire.headers["content-type"].startswith(kind) for kind in answer["content"])
    )


async def test_every_answer_is_declared(keyed, client, document):
    for path, verb, operation in operations(document):
        if path in ENDLESS:
            continue
        bodies = (
            [GOOD[path], [], {"model": "nope"}, {"model": "fake"} | GOOD[path]] if verb == "post" else [b""]
        )
        for address in ADDRESSES.get(path, [path]):
            for body in bodies:
                for headers in ([], [KEY], [KEY, ("content-encoding", "br")]):
                    wire = Wire(keyed, address, body, method=verb.upper(), headers=headers)
                    await wire.run()
                    assert declared(operation, wire), (path, wire.status, wire.headers)
    client.the_card = LoadingError()
    for path, verb, operation in operations(document):
        if path not in ENDLESS:
            wire = Wire(keyed, path, GOOD.get(path, b""), method=verb.upper(), headers=[KEY])
            assert declared(operation, await wire.run()), (path, wire.status)


async def test_what_a_key_may_not_use_is_declared(app_with_keys, document):
    app = app_with_keys("{alice: {key: right, models: [other]}}")
    refused = set()
    for path, verb, operation in operations(document):
        if path not in ENDLESS:
            wire = Wire(app, path, GOOD.get(path, b""), method=verb.upper(), headers=[KEY])
            assert declared(operation, await wire.run()), (path, wire.status)
            refused |= {path} if wire.status == 403 else set()
    assert {CHAT, "/v1/embeddings", "/completion", "/props", "/api/show"} <= refused


async def test_a_stream_is_declared(keyed, document):
    wire = await Wire(keyed, CHAT, ASK | {"stream": True}, headers=[KEY]).run()
    chat = document["paths"][CHAT]["post"]
    assert declared(chat, wire)
    assert {"413", "429", "500", "503", "504"} <= chat["responses"].keys(), "and what may go wrong"
    assert document["paths"]["/debug/stream"]["get"]["responses"]["200"]["content"].keys() == {
        "text/event-stream"
    }


def test_no_answer_is_declared_that_never_comes(document):
    assert not [path for path, _, operation in operations(document) if "422" in operation["responses"]]
    assert "HTTPValidationError" not in document["components"]["schemas"]


async def test_who_wants_a_key_is_declared(keyed, document, client):
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    free = set()
    for path, verb, operation in operations(document):
        wire = await Wire(keyed, path, method=verb.upper(), chunks=[b""]).run()
        assert ("security" in operation) == (wire.status == 401), path
        free |= {path} if wire.status != 401 else set()
    assert free == {"/health", "/ready", "/", "/ui", "/ui/{path}", "/docs"}
    assert (client.asked, client.moves) == ([], []), "nobody else gets as far as an engine"


def test_without_keys_nobody_wants_one(open_document):
    assert not [path for path, _, operation in operations(open_document) if "security" in operation]


def test_what_values_a_field_takes_is_declared(document):
    schemas = document["components"]["schemas"]
    assert schemas["DetokenizeBody"]["properties"]["tokens"]["items"]["minimum"] == 0
    _, _, ids, lists = schemas["CompletionBody"]["properties"]["prompt"]["anyOf"]
    assert ids["items"]["minimum"] == lists["items"]["items"]["minimum"] == 0


SAID = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("path", "body", "accepted"),
    [
        (CHAT, {"messages": []}, False),
        (CHAT, {"messages": [{"content": "hi"}]}, False),
        (CHAT, {"messages": [SAID | {"role": "king"}]}, False),
        (CHAT, {"messages": [SAID | {"role": "function"}]}, True),
        (CHAT, {"messages": [SAID], "thinking": {"type": "perhaps"}}, False),
        (CHAT, {"messages": [SAID], "allowed_token_ids": []}, False),
        ("/v1/completions", {"prompt": []}, False),
        ("/v1/completions", {"prompt": [[]]}, False),
        ("/v1/completions", {"prompt": [[0], [0]]}, True),
        ("/v1/messages", {"max_tokens": 1, "messages": []}, False),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"content": "hi"}]}, False),
        ("/v1/messages", {"max_tokens": 1, "messages": [SAID | {"role": "king"}]}, False),
        ("/v1/messages", {"max_tokens": 1, "messages": [SAID]}, True),
        ("/v1/responses", {"input": []}, False),
        ("/v1/responses", {"input": [{"content": "hi"}]}, False),
        ("/v1/responses", {"input": [SAID], "user": None}, True),
        ("/api/chat", {"messages": [{"content": "hi"}]}, False),
        ("/api/chat", {"messages": []}, True),
        ("/v1/rerank", {"query": "a", "documents": []}, False),
        ("/v1/rerank", {"query": "a"}, False),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "texts": ["c"]}, False),
        ("/v1/embeddings", {"input": []}, False),
        ("/v1/score", {"text_1": [], "text_2": "a"}, False),
        ("/embedding", {}, False),
        ("/embedding", {"input": "a", "content": "b"}, False),
        ("/tokenize", {}, False),
        ("/tokenize", {"content": None}, False),
        ("/tokenize", {"content": "a", "text": "b"}, False),
        ("/tokenize", {"content": "a", "text": None}, True),
        ("/tokenize", {"prompt": ""}, True),
    ],
)
async def test_the_document_and_the_server_agree_on_a_body(registry, post, path, body, accepted):
    there = ("paths", path, "post", "requestBody", "content", "application/json", "schema")
    pointer = "".join(f"/{key.replace('/', '~1')}" for key in there)
    validator = jsonschema.Draft202012Validator({"$ref": f"urn:api#{pointer}"}, registry=registry)
    assert validator.is_valid(body) == accepted
    wire = await post(path, body)
    assert (wire.status == 200) == accepted, wire.body


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/lora-adapters", "GET, HEAD, POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("GET", CHAT, "POST"),
        ("PUT", "/v1/responses/x", "DELETE, GET, HEAD"),
        ("PATCH", "/slots/0", "POST"),
    ],
)
async def test_a_method_that_is_not_allowed_hears_which_are(app, method, path, allowed):
    wire = await Wire(app, path, method=method).run()
    assert (wire.status, wire.json["error"]["code"]) == (405, "method_not_allowed")
    told = [value for name, value in wire.sent[0]["headers"] if name.lower() == b"allow"]
    assert told == [allowed.encode()]


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/v1/models", "/v1/models/fake", "/metrics", "/", "/ui", "/ui/app.js"]
)
async def test_head_is_answered_as_get_is(app, get, path):
    head = await Wire(app, path, method="HEAD").run()
    full = await get(path)
    same = ("content-type", "content-length", "etag")
    assert head.status == full.status == 200
    assert [head.headers.get(name) for name in same] == [full.headers.get(name) for name in same]
