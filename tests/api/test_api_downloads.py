"""Downloads of models through the server: off at first, for operators alone, and ended by who leaves."""

import asyncio
import threading

import pytest
from fake_client import Wire

from cobali_ray.api.routes import downloads
from cobali_ray.errors import ModelNotFoundError
from tests.waiting import until

PATH = "/v1/downloads"
MODEL = "hf://owner/repo:Q4_K_M"


@pytest.fixture
def open_app(make_app, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(downloads, "REST_S", 0.01)
    return make_app(allow_downloads=True)


async def test_it_is_off_until_the_setting_allows_it(app):
    told = (await Wire(app, PATH, method="GET").run()).json
    assert (told["allowed"], told["data"]) == (False, [])
    wire = await Wire(app, PATH, {"model": MODEL}).run()
    assert (wire.status, wire.json["error"]["code"]) == (501, "not_supported")
    assert "allow_downloads" in wire.json["error"]["message"]


async def test_where_there_are_keys_an_operators_is_needed(app_with_keys):
    app = app_with_keys("{admin: {key: a, operator: true}, guest: {key: g}}", allow_downloads=True)
    for key, allowed, status in (("a", True, 400), ("g", False, 403)):
        headers = [("authorization", f"Bearer {key}")]
        assert (await Wire(app, PATH, method="GET", headers=headers).run()).json["allowed"] is allowed
        assert (await Wire(app, PATH, {"model": "no:where"}, headers=headers).run()).status == status


async def test_what_is_on_disk_is_listed_with_its_size_and_the_room_left(open_app, tmp_path):
    snapshot = tmp_path / "hub" / "models--owner--repo" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q8_0.gguf").write_bytes(bytes(123))
    told = (await Wire(open_app, PATH, method="GET").run()).json
    assert {"id": "hf://owner/repo/m-Q8_0.gguf@abc", "size_bytes": 123} in told["data"]
    assert told["free_bytes"] > 0


async def test_progress_is_told_and_then_the_model(open_app, monkeypatch):
    goes_on = threading.Event()

    def resolve(reference, *, progress):
        assert reference == MODEL
        progress("downloading m.gguf", 0.25)
        goes_on.wait(60)

    monkeypatch.setattr(downloads, "resolve", resolve)
    wire = Wire(open_app, PATH, {"model": MODEL})
    run = wire.start()
    await until(lambda: b"0.25" in wire.body)
    goes_on.set()
    await run
    assert wire.headers["content-type"].startswith("text/event-stream")
    assert {"step": "downloading m.gguf", "share": 0.25} in wire.events
    assert wire.events[-1] == {"model": MODEL}


async def test_who_leaves_ends_the_download_and_the_next_one_has_its_turn(open_app, monkeypatch):
    ended, begun = threading.Event(), threading.Event()

    def resolve(reference, *, progress):
        if reference != MODEL:
            return
        begun.set()
        try:
            while True:
                progress("downloading", 0.5)
        finally:
            ended.set()

    monkeypatch.setattr(downloads, "resolve", resolve)
    wire = Wire(open_app, PATH, {"model": MODEL})
    run = wire.start()
    await asyncio.to_thread(begun.wait, 60)
    second = Wire(open_app, PATH, {"model": "hf://owner/other"})
    waiting = second.start()
    await second.got_body.wait()
    assert second.events == [{"step": "waiting for another download", "share": 0.0}]
    wire.hang_up()
    await asyncio.gather(run, return_exceptions=True)
    assert await asyncio.to_thread(ended.wait, 60)
    await waiting
    assert second.events[-1] == {"model": "hf://owner/other"}


async def test_what_is_wrong_with_the_model_is_told(open_app, monkeypatch):
    for model, why in (("builtin:tiny", "must begin with hf://"), ("hf://x", "is not hf://owner/repo")):
        wire = await Wire(open_app, PATH, {"model": model}).run()
        assert wire.status == 400
        assert (wire.json["error"]["param"], wire.json["error"]["code"]) == ("model", "invalid_value")
        assert why in wire.json["error"]["message"]

    def resolve(reference, *, progress):
        raise ModelNotFoundError("model", "there is no repository 'owner/repo'")

    monkeypatch.setattr(downloads, "resolve", resolve)
    error = (await Wire(open_app, PATH, {"model": MODEL}).run()).events[-1]["error"]
    assert error["message"] == "model: there is no repository 'owner/repo'"
