"""What goes over the wire: refusals, headers, keys, limits, probes."""

import pytest
from fake_client import ASK, CHAT, Wire
from structlog.testing import capture_logs

from cobali_ray.errors import LoadingError


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(b"{", "invalid_json", id="cut"),
        pytest.param(b"", "invalid_json", id="empty"),
        pytest.param(b"[]", "invalid_json", id="list"),
        pytest.param(b'{"messages": "\xed"}', "invalid_json", id="half-a-character"),
        pytest.param(b"[" * 5000, "invalid_json", id="deep"),
        pytest.param(b"{}", "invalid_value", id="no-messages"),
    ],
)
async def test_broken_bodies(post, raw, code):
    wire = await post(CHAT, raw, headers=[("content-type", "text/plain")])
    assert (wire.status, wire.json["error"]["code"]) == (400, code)


@pytest.mark.parametrize("headers", [[], [("content-length", "70")]], ids=["chunked", "announced"])
async def test_the_body_limit_holds_with_and_without_content_length(make_app, headers):
    app = make_app(max_body_bytes=64)
    wire = Wire(app, CHAT, chunks=[b"x" * 40, b"x" * 30, b"never read"], headers=headers)
    await wire.run()
    assert (wire.status, wire.json["error"]["code"]) == (413, "body_too_large")
    assert "64 bytes" in wire.json["error"]["message"]
    assert wire.inbox.qsize() == (3 if headers else 1)


async def test_what_the_template_refuses_is_the_clients_fault(post):
    wire = await post(CHAT, {"messages": [{"role": "user", "content": "refuse me"}]})
    assert (wire.status, wire.json["error"]["message"]) == (400, "the template refuses")


async def test_while_loading_everything_answers_503(post, get, client):
    client.the_card = LoadingError()
    for wire in (await post(CHAT, ASK), await get("/v1/models")):
        assert (wire.status, wire.headers["retry-after"], wire.json["error"]["code"]) == (503, "1", "loading")


@pytest.fixture
def keyed_app(make_app):
    return make_app(api_keys=("one", "two"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param([], 401, id="none"),
        pytest.param([("authorization", "Bearer wrong")], 401, id="wrong"),
        pytest.param([("authorization", "Basic one")], 401, id="scheme"),
        pytest.param([("authorization", "Bearer ")], 401, id="empty"),
        pytest.param([("authorization", "Bearer one")], 200, id="first"),
        pytest.param([("authorization", "bearer two")], 200, id="second"),
        pytest.param([("x-api-key", "two")], 200, id="x-api-key"),
    ],
)
async def test_keys(keyed_app, post, get, headers, status):
    app = keyed_app
    wire = await post(CHAT, ASK, headers=headers, app=app)
    assert wire.status == status
    assert (await get("/metrics", headers=headers, app=app)).status == status
    assert (await get("/health", app=app)).status == 200
    assert (await get("/ready", app=app)).status == 200
    if status == 401:
        assert wire.headers["www-authenticate"] == "Bearer"
        error = wire.json["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param("abc-1.2:3_4", True, id="sane"),
        pytest.param("x" * 129, False, id="long"),
        pytest.param("a b", False, id="space"),
        pytest.param("", False, id="empty"),
    ],
)
async def test_the_clients_request_id_is_kept_if_sane(get, sent, kept):
    wire = await get("/health", headers=[("x-request-id", sent)])
    answered = wire.headers["x-request-id"]
    assert answered == sent if kept else answered.startswith("req_")


async def test_metrics_are_an_exposition(get):
    wire = await get("/metrics")
    assert wire.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"cobali_engine_up" in wire.body


@pytest.mark.parametrize("version", ["1.0.0", "none", "9" * 5000])
async def test_metrics_are_openmetrics_for_whoever_asks_for_it(get, version):
    accept = f"application/openmetrics-text;version={version},text/plain;q=0.5"
    wire = await get("/metrics", headers=[("accept", accept)])
    assert wire.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert wire.body.endswith(b"# EOF\n")


async def test_tokenize_and_back(post, client):
    wire = await post("/tokenize", {"content": "once upon"})
    assert wire.json == {"tokens": [1, 2], "count": 2}
    assert (await post("/tokenize", {"text": "once", "add_special": True})).json["tokens"] == [0, 1]
    await post("/tokenize", {"prompt": "once", "parse_special": False})
    assert client.tokenized[0] == ("once upon", False, True)
    assert client.tokenized[-1] == ("once", False, False)
    pieces = await post("/tokenize", {"content": "once upon", "with_pieces": True})
    assert pieces.json["tokens"] == [{"id": 1, "piece": "once"}, {"id": 2, "piece": " upon"}]
    assert (await post("/detokenize", {"tokens": [1, 2]})).json == {
        "content": "once upon",
        "prompt": "once upon",
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        pytest.param("/tokenize", {}, "content", id="nothing"),
        pytest.param("/tokenize", {"content": "a", "text": "b"}, "content", id="both"),
        pytest.param("/detokenize", {"tokens": [1000]}, "tokens", id="outside"),
        pytest.param("/detokenize", {"tokens": ["a"]}, "tokens[0]", id="kind"),
        pytest.param("/detokenize", {}, "tokens", id="missing"),
    ],
)
async def test_what_the_token_routes_refuse(post, path, body, param):
    wire = await post(path, body)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)


async def test_every_operation_has_a_title_that_no_other_of_its_group_has(get):
    document = (await get("/openapi.json")).json
    operations = {
        (path, verb): one for path, verbs in document["paths"].items() for verb, one in verbs.items()
    }
    titles = {name: one["summary"] for name, one in operations.items()}
    assert titles["/rerank", "post"] == titles["/reranking", "post"] == "The same as /v1/rerank"
    grouped = [(one["tags"][0], titles[name]) for name, one in operations.items()]
    own = [one for one in grouped if not one[1].startswith(("The same as ", "Refuse"))]
    assert [one for one in own if own.count(one) > 1] == []
    assert {tag for one in operations.values() for tag in one["tags"]} == {
        tag["name"] for tag in document["tags"]
    }


async def test_one_log_line_per_request_without_its_text(post):
    with capture_logs() as logs:
        await post(CHAT, ASK | {"messages": [{"role": "user", "content": "top secret"}], "stream": True})
    assert len(logs) == 1
    line = logs[0]
    assert (line["event"], line["log_level"], line["method"], line["route"], line["status"]) == (
        "http_request",
        "info",
        "POST",
        CHAT,
        200,
    )
    assert (line["model"], line["tenant"], line["n_cached"]) == ("fake", None, 1)
    assert line["tokens_per_second"] == pytest.approx(2 / 0.4)
    assert (line["stream"], line["n_output"], line["finish_reasons"]) == (True, 3, ["stop"])
    assert (line["queue_s"], line["ttft_s"], line["e2e_s"]) == (0.01, 0, 0), "its clock stood still"
    assert line["cancelled"] is False
    assert line["n_prompt"] > 0
    assert "secret" not in repr(logs)


async def test_a_bug_is_logged_and_tells_the_client_nothing(post, client):
    client.script = lambda _: [RuntimeError("secret path")]
    with capture_logs() as logs:
        wire = await post(CHAT, ASK)
    assert (wire.status, wire.json["error"]["type"]) == (500, "server_error")
    assert b"secret" not in wire.body
    failed = next(line for line in logs if line["event"] == "request_failed")
    assert failed["cause"].startswith("Traceback")
    assert failed["cause"].endswith("RuntimeError: secret path\n")
    assert logs[-1]["error"] == "internal_error"


async def test_every_request_is_counted_by_route_method_and_status(keyed_app, post, get, client):
    good = [("authorization", "Bearer one")]
    for i in range(3):
        await post(f"/v1/guess-{i}", {}, app=keyed_app)
        await get(f"/v1/models/invented-{i}", headers=good, app=keyed_app)
    await get(f"/v1/{'x' * 50}", headers=good, app=keyed_app)
    await Wire(keyed_app, CHAT, b"", method="INVENTED", headers=good).run()
    await post(CHAT, ASK, headers=good, app=keyed_app)
    await get("/ready", app=keyed_app)
    assert client.answers == {
        ("unmatched", "POST", 401): 3,
        ("/v1/models/{model_id:path}", "GET", 404): 3,
        ("unmatched", "GET", 404): 1,
        (CHAT, "other", 405): 1,
        (CHAT, "POST", 200): 1,
        ("/ready", "GET", 200): 1,
    }


async def test_a_body_in_pieces_is_one_body(app):
    wire = await Wire(app, CHAT, chunks=[b'{"messages":[{"role":"us', b'er","content":"hi"}]}']).run()
    assert wire.json["choices"][0]["message"]["content"] == "Hello world!"
