"""Adapters over HTTP: names of models, llama-server's list of them, and the field `lora`."""

from dataclasses import replace

import pytest
from fake_client import ASK, CARD, CHAT, FakeClient, Wire
from openai import NotFoundError

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.core.dispatch.route import names_of
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.request.embedding import EmbeddingKind
from cobali_ray.errors import LoadingError, UnloadedError
from cobali_ray.settings import ApiSettings

ADAPTERS = (
    Adapter("law", "1f 1.0", "/adapters/law.gguf", 1.0),
    Adapter("poet", "2f 0.5", "/adapters/poet.gguf", 0.5),
    Adapter("off", "", "/adapters/law.gguf", 0.0),
)
NAMES = tuple(one.name for one in ADAPTERS)


@pytest.fixture
def client():
    return FakeClient(card=replace(CARD, adapters=ADAPTERS))


@pytest.fixture
def make_app(client, clock):
    def make(**settings):
        model = ServedModel({"0": client}, ("fake", "alias"), adapters=NAMES)
        return build_api(Fleet([model]), ApiSettings(**settings), clock=clock)

    return make


@pytest.fixture
def under(post, client):
    """Return what the engine is asked to compute a request under, or the error."""

    async def ask(path=CHAT, **fields):
        body = {"prompt": "hi"} if path == "/v1/completions" else ASK
        wire = await post(path, body | fields)
        return client.requests[-1].adapter if wire.status == 200 else (wire.status, wire.json["error"])

    return ask


async def test_a_request_is_computed_under_the_adapter_it_names(under):
    for path in (CHAT, "/v1/completions"):
        named = [await under(path, model=name) for name in ("fake", "alias", *NAMES)]
        assert named == ["", "", "1f 1.0", "2f 0.5", ""]
    assert await under() == "", "whoever names no model gets the model itself"


async def test_the_engine_is_told_by_which_name_and_under_which_id_it_was_asked(under, client):
    asks = [{"model": name} for name in ("fake", "alias", "poet")] + [{"lora": [{"id": 1, "scale": 0.5}]}]
    for asked, name in zip(asks, ("fake", "fake", "poet", "poet"), strict=True):
        await under(**asked)
        assert client.requests[-1].model == name


async def test_the_answer_names_the_adapter(openai, post):
    for name, told in (("law", "law"), ("fake", "fake"), ("alias", "fake")):
        answer = await openai.chat.completions.create(model=name, **ASK)
        assert answer.model == told
        stream = await post(CHAT, ASK | {"model": name, "stream": True})
        assert f'"model":"{told}"'.encode() in stream.body.replace(b": ", b":")
    prints = {(await openai.chat.completions.create(model=name, **ASK)).system_fingerprint for name in NAMES}
    assert len(prints) == 3, "whose fingerprints differ"


async def test_adapters_are_listed_with_their_parent(openai, get):
    listed = {model.id: model for model in (await openai.models.list()).data}
    assert list(listed) == ["fake", "alias", *NAMES]
    assert [listed[name].parent for name in listed] == [None, None, "fake", "fake", "fake"]
    assert (await openai.models.retrieve("poet")).parent == "fake"
    with pytest.raises(NotFoundError, match="'fake', 'law', 'poet', 'off'"):
        await openai.chat.completions.create(model="nobody", **ASK)


async def test_adapters_of_a_model_that_is_not_loaded_are_known(make_app, client, get):
    client.the_card = LoadingError()
    data = (await get("/v1/models")).json["data"]
    assert [(one["id"], one["parent"]) for one in data][2] == ("law", "fake")
    assert (await get("/lora-adapters")).status == 503


async def test_a_model_is_loaded_for_its_adapter(under, client):
    client.the_card, client.present = UnloadedError(), False
    assert await under(model="law") == "1f 1.0"
    assert client.loads


async def test_the_list_is_llama_servers(get):
    assert (await get("/lora-adapters")).json == [
        {"id": 0, "path": "law.gguf", "scale": 1.0, "model": "law"},
        {"id": 1, "path": "poet.gguf", "scale": 0.5, "model": "poet"},
        {"id": 2, "path": "law.gguf", "scale": 0.0, "model": "off"},
    ]
    assert (await get("/lora-adapters?model=alias")).json[0]["id"] == 0
    assert (await get("/lora-adapters?model=nobody")).status == 404


async def test_scales_are_not_changed_for_all(post):
    for body in ([{"id": 0, "scale": 0.2}], [], b"{"):
        wire = await post("/lora-adapters", body)
        assert (wire.status, wire.json["error"]["code"]) == (501, "not_supported")
        assert "setting adapters" in wire.json["error"]["message"]


@pytest.mark.parametrize(
    ("lora", "adapter"),
    [
        pytest.param([{"id": 0, "scale": 1.0}], "1f 1.0", id="one"),
        pytest.param([{"id": 1, "scale": 0.5}], "2f 0.5", id="with-its-own-scale"),
        pytest.param([{"id": 1, "scale": 0.0}], "", id="scale-0-is-none"),
        pytest.param([{"id": 0, "scale": 1}, {"id": 1, "scale": 0}], "1f 1.0", id="the-others-with-0"),
        pytest.param([{"id": 0, "scale": 1}, {"id": 0, "scale": 0}], "", id="what-is-said-last-holds"),
        pytest.param([], "", id="empty"),
        pytest.param(None, "", id="null"),
    ],
)
async def test_a_body_may_ask_by_id(under, lora, adapter):
    assert await under(lora=lora) == adapter
    assert await under("/v1/completions", model="alias", lora=lora) == adapter


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"lora": [{"id": 3, "scale": 1}]}, "lora[0].id", id="no-such-id"),
        pytest.param({"lora": [{"id": -1, "scale": 1}]}, "lora[0].id", id="negative-id"),
        pytest.param({"lora": [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]}, "lora[1].scale", id="scale"),
        pytest.param({"lora": [{"id": 0, "scale": 1}, {"id": 1, "scale": 0.5}]}, "lora", id="two"),
        pytest.param({"lora": [{"id": 0, "scale": 1}], "model": "poet"}, "lora", id="beside-a-name"),
        pytest.param({"lora": [{"id": 0}]}, "lora[0].scale", id="without-scale"),
        pytest.param({"lora": {"id": 0, "scale": 1}}, "lora", id="no-list"),
        pytest.param({"lora": [{"id": 0, "scale": 0}] * 257}, "lora", id="too-many"),
    ],
)
async def test_what_cannot_be_computed_is_refused_by_name(under, fields, param):
    status, error = await under(**fields)
    assert (status, error["param"]) == (400, param)


async def test_a_key_must_allow_the_adapter_whichever_way_it_is_asked_for(app_with_keys):
    app = app_with_keys("{base: {key: b, models: [fake]}, law: {key: l, models: [fake, law]}}")

    async def status(key, **fields):
        return (await Wire(app, CHAT, ASK | fields, headers=[("x-api-key", key)]).run()).status

    by_id = {"model": "fake", "lora": [{"id": 0, "scale": 1}]}
    for key, fields, expected in [
        ("b", {"model": "fake"}, 200), ("l", {"model": "law"}, 200), ("l", by_id, 200),
        ("b", {"model": "law"}, 403), ("b", by_id, 403), ("l", {"model": "poet"}, 403),
    ]:  # fmt: skip
        assert await status(key, **fields) == expected, (key, fields)


async def test_the_router_knows_prefixes_of_adapters_apart(under, client):
    await under(model="law")
    await under(model="fake")
    tokens = tuple(range(200))
    law, base = (names_of(tokens, replace(one, prompt=tokens).salt) for one in client.requests)
    assert not set(law) & set(base)
    assert base == names_of(tokens, ""), "of the model itself they are what they were"


async def test_an_activated_adapter_begins_where_it_is_invoked(under, client):
    client.the_card = replace(CARD, adapters=(ADAPTERS[0]._replace(invocation=(7, 8)),))
    for prompt, key, n_plain in [
        ([1, 7, 8, 2, 7, 8, 3], "1f 1.0", 4),
        ([7, 8, 3], "1f 1.0", 0),
        ([1, 2, 3], "", 0),
    ]:
        assert await under("/v1/completions", model="law", prompt=prompt) == key
        request = client.requests[-1]
        assert (request.model, request.n_plain) == ("law", n_plain)
        assert (request.salt == request.cache_salt) == (n_plain > 0 or not key), "it shares what is plain"


async def test_ollamas_clients_find_adapters_too(get):
    listed = (await get("/api/tags")).json["models"]
    assert [one["name"] for one in listed] == [f"{name}:latest" for name in ("fake", "alias", *NAMES)]
    digests = [one["digest"] for one in listed]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 1 + len(NAMES), "adapters are other models"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/embedding", {"content": "a"}),
        ("/api/embed", {"input": "a"}),
    ],
)
async def test_texts_are_not_embedded_under_an_adapter(get, post, client, path, body):
    kind = EmbeddingKind(width=4, n_most=12, n_batch=64, n_together=64, n_texts=8, pooling="mean")
    client.the_card = replace(client.card, embedding=kind)
    wire = await post(path, body | {"model": "law"})
    assert wire.status == 400
    assert b"is an adapter" in wire.body
    assert client.requests == []
    told = [(await get(f"/v1/models/{name}")).json["capabilities"] for name in ("law", "fake")]
    assert told == [["completion"], ["completion", "embedding", "rerank"]]
