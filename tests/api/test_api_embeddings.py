"""What clients are told of texts: vectors, rankings and scores, in the shapes that they know."""

from dataclasses import replace

import numpy as np
import openai as sdk
import pytest
from fake_client import CARD, FakeClient, Wire

from cobali_ray.core.request.embedding import EmbeddingKind, EmbeddingRequest
from cobali_ray.core.request.events import End, RequestStats, Vectors
from cobali_ray.errors import DeadlineExceededError, EngineDiedError, InternalError, QueueFullError

WIDTH = 4
MEAN = EmbeddingKind(width=WIDTH, n_most=12, n_batch=64, n_together=64, n_texts=8, pooling="mean")
RANK = MEAN._replace(width=1, pooling="rank")
PATHS = {
    "/v1/embeddings": {"input": "a b"},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
}


def end(request, error=None):
    stats = RequestStats(request.n_prompt, 0, 0, 0.1, 0.2, None, None, 0.3)
    return End(request.request_id, None if error else "stop", error, stats)


def row_of(tokens, width=WIDTH):
    """A vector that says which tokens it is of."""
    return np.array([len(tokens), tokens[0], tokens[-1], sum(tokens)][:width], "<f4")


def embeds(row=row_of, *, error=None, n_at_once=3):
    """Script: some texts at a time, the last first; then the end."""

    def script(request):
        order = list(range(len(request.ends)))[::-1]
        for start in range(0, len(order), n_at_once):
            some = tuple(order[start : start + n_at_once])
            rows = b"".join(row(request.text(i)).tobytes() for i in some)
            yield [Vectors(request.request_id, rows, some)]
        yield [end(request, error)]

    return script


def scores(*values):
    """Script: these, one a text."""

    def script(request):
        rows = np.array(values, "<f4").tobytes()
        yield [Vectors(request.request_id, rows, tuple(range(len(values)))), end(request)]

    return script


@pytest.fixture
def client():
    return FakeClient(embeds(), replace(CARD, embedding=MEAN))


def unit(row):
    return row / np.linalg.norm(row)


async def test_the_official_client_reads_vectors(openai, client):
    made = await openai.embeddings.create(model="fake", input=["a b c", "d"])
    assert made.model == "fake"
    assert [item.index for item in made.data] == [0, 1]
    (request,) = client.requests
    for item, text in zip(made.data, ("a b c", "d"), strict=True):
        assert np.allclose(item.embedding, unit(row_of(client.tokenize(text))), atol=1e-6)
    assert made.usage.prompt_tokens == made.usage.total_tokens == request.n_prompt == 4 + 2


async def test_floats_are_openais_default(post):
    wire = await post("/v1/embeddings", {"input": "a b"})
    assert wire.status == 200
    assert wire.json == {
        "object": "list",
        "model": "fake",
        "data": [{"object": "embedding", "index": 0, "embedding": wire.json["data"][0]["embedding"]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert np.allclose(wire.json["data"][0]["embedding"], unit(row_of([0, 1, 2])), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        pytest.param("a b", [[0, 1, 2]], id="a text"),
        pytest.param(["a", "a b"], [[0, 1], [0, 1, 2]], id="texts"),
        pytest.param([7, 8, 9], [[7, 8, 9]], id="token ids"),
        pytest.param([[7], [8, 9]], [[7], [8, 9]], id="lists of token ids"),
    ],
)
async def test_what_may_be_embedded(post, client, given, read):
    assert (await post("/v1/embeddings", {"input": given})).status == 200
    (request,) = client.requests
    assert isinstance(request, EmbeddingRequest)
    assert [list(request.text(i)) for i in range(len(request.ends))] == read


async def test_dimensions_cut_and_bring_to_length_one(openai, client):
    made = await openai.embeddings.create(model="fake", input="a b", dimensions=2)
    assert np.allclose(made.data[0].embedding, unit(row_of([0, 1, 2], 2)), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        pytest.param({}, "input", "invalid_value", id="nothing"),
        pytest.param({"input": []}, "input", "invalid_value", id="no texts"),
        pytest.param({"input": ""}, "input", "invalid_value", id="an empty text"),
        pytest.param({"input": ["a", ""]}, "input[1]", "invalid_value", id="one of them empty"),
        pytest.param({"input": [[1], []]}, "input", "invalid_value", id="no tokens"),
        pytest.param({"input": ["a", 1]}, "input", "invalid_value", id="a mixture"),
        pytest.param({"input": [5, 1000]}, "input", "invalid_value", id="no such token"),
        pytest.param({"input": ["a"] * 2049}, "input", "invalid_value", id="too many"),
        pytest.param({"input": "a " * 20}, "input", "context_length_exceeded", id="too long"),
        pytest.param({"input": [[1], [1] * 13]}, "input[1]", "context_length_exceeded", id="too many tokens"),
        pytest.param(
            {"input": "a", "dimensions": 5}, "dimensions", "invalid_value", id="more than there are"
        ),
        pytest.param({"input": "a", "dimensions": 0}, "dimensions", "invalid_value", id="none"),
        pytest.param(
            {"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value", id="format"
        ),
        pytest.param({"input": "a", "timeout_s": -1.0}, "timeout_s", "invalid_value", id="no time"),
        pytest.param({"input": "a", "model": "other"}, "model", "model_not_found", id="another model"),
    ],
)
async def test_what_is_refused(post, client, body, param, code):
    wire = await post("/v1/embeddings", body)
    assert wire.status in {400, 404}
    error = wire.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert not client.requests


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_that_does_not_embed_says_so(post, client, path):
    client.the_card = CARD
    wire = await post(path, PATHS[path])
    assert (wire.status, wire.json["error"]["code"]) == (400, "model_not_supported")
    assert "pooling" in wire.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
    ],
)
async def test_a_model_that_only_embeds_says_so(post, client, path, body):
    client.the_card = replace(client.the_card, generates=False)
    wire = await post(path, body)
    assert (wire.status, wire.json["error"]["code"]) == (400, "model_not_supported")
    assert "/v1/embeddings" in wire.json["error"]["message"]
    assert not client.requests


async def test_a_model_that_ranks_has_no_vectors(post, client):
    client.the_card = replace(client.the_card, embedding=RANK)
    wire = await post("/v1/embeddings", {"input": "a"})
    assert (wire.status, wire.json["error"]["code"]) == (400, "model_not_supported")


@pytest.mark.parametrize(
    ("card", "able"),
    [
        (CARD, ["completion"]),
        (replace(CARD, embedding=MEAN), ["completion", "embedding", "rerank"]),
        (replace(CARD, generates=False, embedding=MEAN), ["embedding", "rerank"]),
        (replace(CARD, generates=False, embedding=RANK), ["rerank"]),
    ],
)
async def test_models_say_what_they_can(get, client, card, able):
    client.the_card = card
    (model,) = (await get("/v1/models")).json["data"]
    assert model["capabilities"] == able


def logistic(*values):
    return [pytest.approx(1 / (1 + np.exp(-value)), abs=1e-6) for value in values]


async def test_documents_are_ranked_as_jina_does(post, client):
    client.the_card, client.script = replace(client.the_card, embedding=RANK), scores(0.5, -2.0, 3.0)
    body = {"query": "q", "documents": ["a", {"text": "b"}, "c"], "top_n": 2, "return_documents": True}
    wire = await post("/v1/rerank", body)
    assert wire.status == 200
    best, next_best = logistic(3.0, 0.5)
    assert wire.json["results"] == [
        {"index": 2, "relevance_score": best, "document": {"text": "c"}},
        {"index": 0, "relevance_score": next_best, "document": {"text": "a"}},
    ]
    (request,) = client.requests
    assert wire.json["usage"] == {"prompt_tokens": request.n_prompt, "total_tokens": request.n_prompt}
    assert [list(request.text(i)) for i in range(3)] == [client.pair("q", text) for text in "abc"]


async def test_documents_are_not_given_back_unasked(post, client):
    client.the_card, client.script = replace(client.the_card, embedding=RANK), scores(0.5, 1.0)
    wire = await post("/v1/rerank", {"query": "q", "documents": ["a", "b"], "raw_scores": True})
    assert wire.json["results"] == [
        {"index": 1, "relevance_score": 1.0},
        {"index": 0, "relevance_score": 0.5},
    ]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
async def test_texts_are_ranked_as_tei_does(post, client, path):
    client.the_card, client.script = replace(client.the_card, embedding=RANK), scores(0.5, 3.0)
    wire = await post(path, {"query": "q", "texts": ["a", "b"], "return_text": True, "raw_scores": True})
    assert wire.json == [{"index": 1, "score": 3.0, "text": "b"}, {"index": 0, "score": 0.5, "text": "a"}]


async def test_probabilities_stay_what_they_are(post, client):
    kind = RANK._replace(probability=True)
    client.the_card, client.script = replace(client.the_card, embedding=kind), scores(0.25)
    wire = await post("/v1/rerank", {"query": "q", "documents": ["a"]})
    assert wire.json["results"] == [{"index": 0, "relevance_score": 0.25}]


async def test_without_a_head_documents_are_ranked_by_angle(post, client):
    vectors = {"q": [1, 0, 0, 0], "same": [2, 0, 0, 0], "near": [1, 1, 0, 0], "away": [-1, 0, 0, 0]}
    by_tokens = {tuple(client.tokenize(text)): np.array(row, "<f4") for text, row in vectors.items()}
    client.script = embeds(lambda tokens: by_tokens[tuple(tokens)])
    wire = await post("/v1/rerank", {"query": "q", "documents": ["away", "same", "near"]})
    found = [(one["index"], one["relevance_score"]) for one in wire.json["results"]]
    assert found == [(1, pytest.approx(1)), (2, pytest.approx(0.5**0.5)), (0, pytest.approx(-1))]


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        pytest.param("a", "b", ["a | b"], id="one pair"),
        pytest.param("a", ["b", "c"], ["a | b", "a | c"], id="one with each"),
        pytest.param(["a", "b"], "c", ["a | c", "b | c"], id="each with one"),
        pytest.param(["a", "b"], ["c", "d"], ["a | c", "b | d"], id="as many"),
    ],
)
async def test_scores_come_pair_by_pair(post, client, first, second, pairs):
    client.the_card = replace(client.the_card, embedding=RANK)
    client.script = scores(*range(len(pairs)))
    wire = await post("/v1/score", {"text_1": first, "text_2": second, "raw_scores": True})
    assert wire.json["data"] == [{"index": i, "object": "score", "score": i} for i in range(len(pairs))]
    assert wire.json["object"] == "list"
    assert [text for text, *_ in client.tokenized] == pairs


async def test_angles_come_pair_by_pair(post, client):
    client.script = embeds(lambda tokens: np.array([1, 0, 0, 0] if tokens[-1] == 1 else [0, 1, 0, 0], "<f4"))
    wire = await post("/v1/score", {"text_1": ["a", "b", "a"], "text_2": "a"})
    assert [one["score"] for one in wire.json["data"]] == [1, 0, 1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "q"}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "texts": ["b"]}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": [{"body": "a"}]}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b " * 20]}, "documents[1]"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": None, "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    ],
)
async def test_what_is_refused_of_pairs(post, client, path, body, param):
    wire = await post(path, body)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert not client.requests


async def test_a_document_too_long_to_be_read_beside_the_query(post, client):
    client.the_card = replace(client.the_card, embedding=RANK)
    wire = await post("/v1/rerank", {"query": "q", "documents": ["a", "b " * 20]})
    assert (wire.status, wire.json["error"]["param"]) == (400, "documents[1]")
    assert wire.json["error"]["code"] == "context_length_exceeded"


async def test_the_engine_may_refuse(openai, client):
    client.script = lambda _: [QueueFullError("tokens", 9, 3.0)]
    with pytest.raises(sdk.APIStatusError) as told:
        await openai.embeddings.create(model="fake", input="a")
    assert (told.value.status_code, told.value.code) == (429, "queue_full")
    assert told.value.response.headers["retry-after"]


@pytest.mark.parametrize(
    ("error", "status"), [(DeadlineExceededError(1.0), 504), (InternalError("secret"), 500)]
)
async def test_an_error_at_the_end_is_the_answer(post, client, error, status):
    client.script = embeds(error=error)
    wire = await post("/v1/embeddings", {"input": ["a"] * 9})
    assert wire.status == status
    assert "secret" not in wire.body.decode()
    assert wire.json["error"]["code"] == error.code


async def test_a_vector_that_never_came_is_no_answer(post, client):
    def script(request):
        yield [Vectors(request.request_id, row_of([1]).tobytes(), (0,)), end(request)]

    client.script = script
    wire = await post("/v1/embeddings", {"input": ["a", "b"]})
    assert (wire.status, wire.json["error"]["code"]) == (500, "events_lost")


async def test_texts_are_embedded_anew_where_an_engine_died(post, client):
    whole = embeds()

    def dies_once(request):
        if len(client.requests) == 1:
            return [[Vectors(request.request_id, row_of([9]).tobytes(), (0,))], EngineDiedError()]
        return whole(request)

    client.script = dies_once
    wire = await post("/v1/embeddings", {"input": ["a", "b"]})
    assert wire.status == 200
    first, again = client.requests
    assert (again.attempt, again.request_id) == (1, f"{first.request_id}~1")
    assert list(again.prompt) == list(first.prompt)
    for item, tokens in zip(wire.json["data"], ([0, 1], [0, 2]), strict=True):
        assert np.allclose(item["embedding"], unit(row_of(tokens)), atol=1e-6)


async def test_keys_have_their_terms(app_with_keys, client):
    terms = "key: right, weight: 3, priority: 2, best_priority: 1, tokens_per_minute: 10"
    app = app_with_keys(f"{{a: {{{terms}}}}}")
    headers = [("x-api-key", "right")]
    wire = await Wire(app, "/v1/embeddings", {"input": "a b"}, headers=headers).run()
    assert wire.status == 200, wire.body
    (request,) = client.requests
    assert (request.tenant, request.weight, request.priority) == ("a", 3, 2)
    wire = await Wire(app, "/v1/embeddings", {"input": ["a b c"] * 5}, headers=headers).run()
    assert (wire.status, wire.json["error"]["code"]) == (429, "rate_limit_exceeded")
    wire = await Wire(app, "/v1/embeddings", {"input": "a", "priority": 0}, headers=headers).run()
    assert (wire.status, wire.json["error"]["param"]) == (400, "priority")


async def test_unknown_fields_are_named_back(post):
    wire = await post("/v1/embeddings", {"input": "a", "user": "me", "input_type": "query"})
    assert wire.headers["x-cobali-ignored-fields"] == "input_type"


async def test_a_long_answer_is_written_in_pieces(post, client):
    texts = [[i % 900, 7] for i in range(2048)]
    wire = await post("/v1/embeddings", {"input": texts})
    assert len(wire.writes) > 3
    assert [item["index"] for item in wire.json["data"]] == list(range(2048))
    assert np.allclose(wire.json["data"][1234]["embedding"], unit(row_of(texts[1234])), atol=1e-6)


async def test_llama_servers_route_has_a_list_of_vectors_per_text(post, client):
    client.script = embeds()
    told = (await post("/embedding", {"content": ["a b", "c"]})).json
    assert [one["index"] for one in told] == [0, 1]
    plain = (await post("/v1/embeddings", {"input": ["a b", "c"]})).json
    assert [one["embedding"] for one in told] == [[one["embedding"]] for one in plain["data"]]
    assert (await post("/embeddings", {"input": "a b"})).json[0]["embedding"] == told[0]["embedding"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/embedding", {}, "content"),
        ("/embedding", {"content": "a", "input": "a"}, "content"),
        ("/embedding", {"content": ["a", ""]}, "content[1]"),
        ("/embedding", {"content": "a", "embd_normalize": -1}, "embd_normalize"),
        ("/reranking", {"query": "a"}, "documents"),
    ],
)
async def test_llama_servers_bodies_are_refused_by_their_own_names(post, client, path, body, param):
    client.script = embeds()
    wire = await post(path, body)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)


async def test_ollamas_routes_have_bare_vectors(post, client):
    client.script = embeds()
    told = (await post("/api/embed", {"model": "fake:latest", "input": ["a b", "c"]})).json
    plain = (await post("/v1/embeddings", {"input": ["a b", "c"]})).json
    assert told == {
        "model": "fake",
        "embeddings": [one["embedding"] for one in plain["data"]],
        "prompt_eval_count": plain["usage"]["prompt_tokens"],
    }
    assert (await post("/api/embed", {"input": "x" * 2049})).status == 200, "one text is not many"
    assert (await post("/api/embed", {"input": ["x"] * 2049})).status == 400
    one = (await post("/api/embeddings", {"prompt": "a b"})).json
    assert one == {"embedding": told["embeddings"][0]}
    short = (await post("/api/embeddings", {"prompt": "a b", "dimensions": 1})).json
    assert len(short["embedding"]) == 1
    for path in ("/api/embed", "/api/embeddings"):
        wire = await post(path, {})
        assert wire.status == 400
        assert isinstance(wire.json["error"], str)
