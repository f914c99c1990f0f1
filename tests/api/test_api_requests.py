"""Where a request is, told to the key that sent it; and a pause of all of them."""

import asyncio

import pytest
from fake_client import ASK, CHAT, Wire

from cobali_ray.core.request.life import Life
from cobali_ray.core.views.progress import Place, view_of_life
from tests.waiting import until

ANSWER = "chatcmpl-" + "0f" * 16
KEYS = "{alice: {key: a-key}, root: {key: r-key, operator: true}}"
NONE = {"queue_progress": None, "finish_reason": None, "error": None}


def life(**changes):
    return Life(
        **{
            "request_id": ANSWER, "slot_id": 0, "state": "prefilling", "n_prompt": 100, "n_cached": 20,
            "n_computed": 60, "n_output": 0, "arrived_s": 5.0, "assigned_s": 7.0, "first_token_s": None,
            "ended_s": None, "finish_reason": None, "error": None, "n_preempted": 0, "stays": (),
            "received_s": 4.9, "model": "fake", "x_request_id": "mine",
        } | changes,
    )  # fmt: skip


def view(place=None, **changes):
    return view_of_life(life(**changes), place, now_s=9.5)


def progress(processed, time_ms, cache=20):
    return {"total": 100, "cache": cache, "processed": processed, "time_ms": time_ms}


def described(state, n_tokens, prompt, **more):
    return NONE | {"state": state, "prompt_progress": prompt, "completion_tokens": n_tokens} | more


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            view(Place(3, 1.25), state="queued", assigned_s=None, n_computed=0, n_cached=0),
            described("queued", 0, progress(0, 0.0, cache=0), queue_progress={"n_ahead": 3, "wait_s": 1.25}),
            id="in-the-queue",
        ),
        pytest.param(view(), described("prefilling", 0, progress(60, 2500.0)), id="in-its-prompt"),
        pytest.param(
            view(state="generating", n_computed=106, n_output=7, first_token_s=8.0),
            described("generating", 7, progress(100, 1000.0)),
            id="in-its-answer",
        ),
        pytest.param(
            view(
                state="ended",
                n_computed=109,
                n_output=9,
                first_token_s=8.0,
                ended_s=9.0,
                finish_reason="stop",
            ),
            described("ended", 9, progress(100, 1000.0), finish_reason="stop"),
            id="over",
        ),
        pytest.param(
            view(state="ended", n_computed=60, ended_s=8.0, error="DeadlineExceededError"),
            described("ended", 0, progress(60, 1000.0), error="deadline_exceeded"),
            id="failed-in-its-prompt",
        ),
    ],
)
async def test_a_request_is_described(seen, expected, get, client):
    client.views = [seen]
    wire = await get("/v1/requests/mine")
    assert wire.json == {
        "id": ANSWER, "object": "request", "x_request_id": "mine", "model": "fake",
        "state": expected["state"], "choices": [{"index": 0} | expected],
    }  # fmt: skip
    assert client.asked == [("mine", "")]


async def test_of_several_choices_each_is_described_and_one_that_moved_once(get, client):
    client.views = [
        view(request_id=f"{ANSWER}-1~1", attempt=1, arrived_s=5.2, state="queued", place=Place(0, None)),
        view(request_id=f"{ANSWER}-1", state="ended", arrived_s=5.1, error="EngineDiedError"),
        view(request_id=f"{ANSWER}-0", state="ended", finish_reason="length", arrived_s=6.0),
    ]
    found = (await get(f"/v1/requests/{ANSWER}")).json
    assert found["id"] == ANSWER
    assert [choice["state"] for choice in found["choices"]] == ["ended", "queued"]
    assert found["state"] == "queued", "it has not ended while a choice has not"


async def test_of_a_name_that_was_used_again_the_newer_request_counts(get, client):
    other = "chatcmpl-" + "ab" * 16
    client.views = [view(received_s=2.0, state="ended"), view(request_id=other, received_s=3.0)]
    assert (await get("/v1/requests/mine")).json["id"] == other


async def test_one_that_no_engine_has_yet_is_known_where_it_waits(app, client, get):
    client.present, client.load_step = False, asyncio.Event()
    client.engine = client.engine.__class__(status="unloaded")
    wire = Wire(app, CHAT, ASK, headers=[("x-request-id", "waits")])
    task = wire.start()
    await until(lambda: client.loads)
    found = (await get("/v1/requests/waits")).json
    assert (found["state"], found["x_request_id"]) == ("loading", "waits")
    client.load_step.set()
    await task
    assert wire.status == 200
    assert (await get("/v1/requests/waits")).status == 404, "it is over, and this engine has forgotten it"


async def test_another_key_has_no_such_request(app_with_keys, client, said):
    app = app_with_keys(KEYS)
    said.say("x")
    headers = [("authorization", "Bearer a-key"), ("x-request-id", "mine")]
    task = Wire(app, CHAT, ASK, headers=headers).start()
    await until(lambda: client.n_open)
    found = {}
    for key in ("a-key", "r-key", "no-key"):
        asked = Wire(app, "/v1/requests/mine", method="GET", headers=[("x-api-key", key)])
        found[key] = (await asked.run()).status
    assert found == {"a-key": 200, "r-key": 404, "no-key": 401}
    assert client.asked == [("mine", "alice"), ("mine", "root")], "the engine is asked in the key's own name"
    said.say(None)
    await task


@pytest.mark.parametrize(("key", "status"), [("r-key", 200), ("a-key", 403)])
async def test_only_an_operators_key_pauses(key, status, app_with_keys, client):
    app = app_with_keys(KEYS)
    for path, paused in (("/v1/pause", True), ("/v1/resume", False)):
        wire = await Wire(app, path, headers=[("x-api-key", key)]).run()
        assert wire.status == status
        if status == 200:
            assert wire.json == {"paused": paused, "engines": {"0": {"n_requests": 0}}}
            assert client.engine.paused == paused
        else:
            assert wire.json["error"]["code"] == "operator_key_needed"
            assert not client.engine.paused


async def test_without_a_file_of_keys_whoever_may_ask_may_pause(app, make_app, client, get):
    assert (await Wire(app, "/v1/pause").run()).status == 200
    assert (await get("/ready")).json["engine"]["paused"], "it still takes requests, and says that they wait"
    assert not client.released
    assert (await Wire(app, "/v1/pause?release=true").run()).status == 200
    assert client.released
    for wrong in ("engine=7", "release=perhaps"):
        assert (await Wire(app, f"/v1/pause?{wrong}").run()).status == 400
    assert (await Wire(app, "/v1/resume?engine=0").run()).status == 200
    assert not client.engine.paused
    keyed = make_app(api_keys=("k",))
    assert (await Wire(keyed, "/v1/pause", headers=[("x-api-key", "k")]).run()).status == 200
