"""What the cache holds, over HTTP, and llama-server's calls on slots."""

import pytest
from fake_client import HELD, Wire

from cobali_ray.core.views.cache import CacheView, SlotMove
from cobali_ray.errors import LoadingError, SlotBusyError


@pytest.fixture
def act(app, client):
    """POST to a slot and return the finished Wire."""

    async def go(slot, query, body=b"", app=app, **kwargs):
        return await Wire(app, f"/slots/{slot}?{query}", body, **kwargs).run()

    return go


async def test_what_is_held_and_what_it_was_good_for(client, get):
    wire = await get("/v1/cache")
    assert wire.status == 200
    told = wire.json
    assert told["slots"] == [
        {"slot_id": 0, "state": "idle", "n_tokens": 120, "request_id": None},
        {"slot_id": 1, "state": "busy", "n_tokens": 44, "request_id": "r1"},
        {"slot_id": 2, "state": "idle", "n_tokens": 0, "request_id": None},
    ]
    assert [told[name] for name in ("kv_cells", "host", "states", "disk")] == [
        HELD.kv_cells, HELD.host, HELD.states, HELD.disk,
    ]  # fmt: skip
    assert told["tiers"]["host"] == {
        "n_requests": 1, "n_tokens": 100, "request_share": 0.125, "token_share": 0.1,
    }  # fmt: skip
    assert sum(tier["token_share"] for tier in told["tiers"].values()) == pytest.approx(1.0)
    assert told["settings"] == {"n_slots": 3}


async def test_before_the_first_request_all_shares_are_zero(client, get):
    nothing = dict.fromkeys(HELD.tier_requests, 0)
    client.held = CacheView(**{name: getattr(HELD, name) for name in HELD.__slots__} | {
        "tier_requests": nothing, "tier_tokens": nothing,
    })  # fmt: skip
    tiers = (await get("/v1/cache")).json["tiers"]
    assert {share for tier in tiers.values() for share in tier.values()} == {0}


async def test_slots_are_told_as_llama_server_tells_them(client, get):
    idle, busy, empty = (await get("/slots")).json
    assert (idle["id"], idle["is_processing"], idle["id_task"], idle["n_ctx"]) == (0, False, -1, 1024)
    assert (idle["n_prompt_tokens"], empty["n_prompt_tokens"]) == (120, 0)
    assert (busy["id"], busy["is_processing"], busy["id_task"]) == (1, True, "r1")
    assert (busy["n_prompt_tokens"], busy["n_prompt_tokens_cache"], busy["n_prompt_tokens_processed"]) == (
        40, 32, 8,
    )  # fmt: skip
    assert busy["next_token"] == [{"has_next_token": True, "n_remain": 7, "n_decoded": 5}]


ACTIONS = [
    pytest.param(
        "save", SlotMove(1, 84, "a.bin", 5000, 0.0123),
        {"id_slot": 1, "filename": "a.bin", "n_saved": 84, "n_written": 5000,
         "timings": {"save_ms": 12.3}},
        id="save",
    ),
    pytest.param(
        "restore", SlotMove(1, 84, "a.bin", 5000, 0.0123),
        {"id_slot": 1, "filename": "a.bin", "n_restored": 84, "n_read": 5000,
         "timings": {"restore_ms": 12.3}},
        id="restore",
    ),
    pytest.param("erase", SlotMove(1, 84), {"id_slot": 1, "n_erased": 84}, id="erase"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "moved", "told"), ACTIONS)
async def test_an_action_answers_as_llama_server_does(client, act, action, moved, told):
    client.moved = moved
    body = b"" if action == "erase" else {"filename": "a.bin"}
    wire = await act(1, f"action={action}", body)
    assert (wire.status, wire.json) == (200, told)
    assert client.moves == [(action, 1, "" if action == "erase" else "a.bin")]


@pytest.mark.parametrize(
    ("slot", "query", "body", "param"),
    [
        pytest.param(0, "", {"filename": "a"}, "action", id="no-action"),
        pytest.param(0, "action=turn", {"filename": "a"}, "action", id="unknown-action"),
        pytest.param("x", "action=save", {"filename": "a"}, "id_slot", id="no-number"),
        pytest.param("-1", "action=save", {"filename": "a"}, "id_slot", id="negative"),
        pytest.param(0, "action=save", {}, "filename", id="no-name"),
        pytest.param(0, "action=restore", {"filename": 5}, "filename", id="name-of-a-number"),
        pytest.param(0, "action=save", b"[]", None, id="no-object"),
    ],
)
async def test_what_is_asked_wrongly_never_reaches_the_engine(client, act, slot, query, body, param):
    wire = await act(slot, query, body)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert client.moves == []


async def test_a_refusal_of_the_engine_is_told(client, act):
    client.moved = SlotBusyError(0, "a request is in it")
    wire = await act(0, "action=save", {"filename": "a"})
    assert (wire.status, wire.json["error"]["code"]) == (409, "slot_busy")


@pytest.mark.parametrize("path", ["/v1/cache", "/slots"])
async def test_an_engine_that_is_away_is_loading(client, get, path):
    client.held = LoadingError()
    assert (await get(path)).status == 503
