"""Which salt a request has: its key's, its own, or none."""

import pytest
from fake_client import CHAT

ASKS = {
    CHAT: {"model": "fake", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "fake", "prompt": "hi"},
}


@pytest.fixture
def salt_of(make_app, post, client):
    """Return the salts that the engine hears of, one per request."""
    apps = {keys: make_app(api_keys=keys) for keys in [(), ("one", "two")]}

    async def ask(key=None, path=CHAT, keys=("one", "two"), **fields):
        headers = [] if key is None else [("authorization", f"Bearer {key}")]
        wire = await post(path, ASKS[path] | fields, app=apps[keys], headers=headers)
        assert wire.status == 200
        assert "x-cobali-ignored-fields" not in wire.headers
        return client.requests[-1].cache_salt

    return ask


async def test_without_keys_all_share(salt_of):
    assert {await salt_of(path=path, keys=()) for path in ASKS} == {""}


async def test_each_key_has_a_salt_that_does_not_show_it(salt_of):
    one, two = await salt_of("one"), await salt_of("two")
    assert one not in ("", "one")
    assert one != two
    assert one == await salt_of("one", "/v1/completions"), "whatever is asked"
    assert "one" not in one


@pytest.mark.parametrize("path", ASKS)
async def test_a_salt_divides_what_a_key_has_and_reaches_nobody_elses(salt_of, path):
    salts = [
        await salt_of("one", path, cache_salt="a"),
        await salt_of("one", path, cache_salt="b"),
        await salt_of("two", path, cache_salt="a"),
        await salt_of(path=path, keys=(), cache_salt="a"),
        await salt_of("one", path),
        await salt_of("two", path),
        await salt_of("two", path, cache_salt=await salt_of("one", path)),
    ]
    assert len(set(salts)) == len(salts)
    assert salts[0] == await salt_of("one", path, cache_salt="a")
    assert all(len(salt) == 32 for salt in salts)


@pytest.mark.parametrize("path", ASKS)
async def test_cache_prompt_false_shares_with_nobody(salt_of, path):
    assert await salt_of("one", path, cache_prompt=False, cache_salt="a") is None
    assert await salt_of("one", path, cache_prompt=True) == await salt_of("one", path)


@pytest.mark.parametrize("salt", ["", "x" * 257, 5, ["a"]], ids=["empty", "long", "number", "list"])
async def test_what_is_no_salt_is_refused(post, salt):
    wire = await post(CHAT, ASKS[CHAT] | {"cache_salt": salt})
    assert wire.status == 400
    assert wire.json["error"]["param"] == "cache_salt"
