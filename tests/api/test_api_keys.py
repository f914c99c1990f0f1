"""A file of keys: who may do what, how much of it, and from when on."""

import asyncio
import os

import pytest
from fake_client import ASK, CHAT, says

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.errors import ConfigError
from cobali_ray.settings import ApiSettings
from tests.waiting import until


class Keys:
    """A file of keys, and requests with them."""

    def __init__(self, path, make_app, post):
        self.path, self._post, self._make_app = path, post, make_app
        self.app = None

    def write(self, **terms):
        lines = [f"  {name}: {{key: {name}-key, {more}}}" for name, more in terms.items()]
        self.put("keys:\n" + "\n".join(lines))

    def put(self, text):
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def serve(self, **settings):
        self.app = self._make_app(api_keys_file=self.path, **settings)

    async def ask(self, name, **fields):
        headers = [("authorization", f"Bearer {name}-key")]
        return await self._post(CHAT, ASK | fields, app=self.app, headers=headers)


@pytest.fixture
def keys(tmp_path, make_app, post):
    return Keys(tmp_path / "keys.yaml", make_app, post)


async def test_terms_reach_the_engine(keys, client):
    keys.write(alice="weight: 3, priority: 2, max_tokens: 5", bob="best_priority: -1")
    keys.serve()
    await keys.ask("alice")
    await keys.ask("bob", priority=-1, max_tokens=9)
    await keys.ask("alice", priority=7, max_tokens=3)
    said = [(r.tenant, r.weight, r.priority, r.max_tokens) for r in client.requests]
    assert said == [("alice", 3.0, 2, 5), ("bob", 1.0, -1, 9), ("alice", 3.0, 7, 3)]


async def test_a_better_class_than_the_key_allows_is_refused(keys, post):
    keys.write(alice="priority: 2")
    keys.serve()
    wire = await keys.ask("alice", priority=1)
    assert (wire.status, wire.json["error"]["param"]) == (400, "priority")
    assert (await post(CHAT, ASK | {"priority": -1})).status == 400, "without keys either"
    assert (await post(CHAT, ASK | {"priority": 3})).status == 200


async def test_models_are_named(keys):
    keys.write(alice="models: [other]", bob="models: [fake]")
    keys.serve()
    assert (await keys.ask("bob")).status == (await keys.ask("bob", model="fake")).status == 200
    wire = await keys.ask("alice")
    assert (wire.status, wire.json["error"]["code"]) == (403, "model_not_allowed")


async def test_who_asks_too_often_hears_when_to_come_back(keys, clock):
    keys.write(alice="requests_per_minute: 2, tokens_per_minute: 600", bob="weight: 1")
    keys.serve()
    wires = [await keys.ask("alice") for _ in range(3)]
    assert [wire.status for wire in wires] == [200, 200, 429]
    assert [wire.headers["x-ratelimit-remaining-requests"] for wire in wires] == ["1", "0", "0"]
    error, last = wires[2].json["error"], wires[2].headers
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert last["retry-after"] == "30"
    assert last["x-ratelimit-limit-tokens"] == "600"
    assert not [name for name in (await keys.ask("bob")).headers if name.startswith("x-ratelimit")]
    clock.time_s += 30
    assert (await keys.ask("alice")).status == 200


async def test_output_tokens_count_at_the_end(keys, client):
    client.script = says(*["word "] * 20)
    keys.write(alice="tokens_per_minute: 60")
    keys.serve()
    first, second = await keys.ask("alice"), await keys.ask("alice")
    n_prompt = first.json["usage"]["prompt_tokens"]
    assert first.headers["x-ratelimit-remaining-tokens"] == str(60 - n_prompt)
    assert second.headers["x-ratelimit-remaining-tokens"] == str(60 - 2 * n_prompt - 20)


@pytest.mark.parametrize("terms", ["concurrent_requests: 1", "concurrent_requests: 1, weight: 2"])
async def test_what_is_under_way_is_counted_until_it_ends_whatever_the_terms_are_then(
    keys, client, clock, said, terms
):
    keys.write(alice="concurrent_requests: 1")
    keys.serve()
    first = asyncio.ensure_future(keys.ask("alice"))
    await until(lambda: client.n_open)
    keys.write(alice=terms)
    clock.time_s += 1.0
    assert (await keys.ask("alice")).status == 429
    said.say("Hello", None)
    assert (await first).status == 200
    assert (await keys.ask("alice", n="x")).status == 400
    assert (await keys.ask("alice")).status == 200, "what was refused holds no place"


async def test_a_file_that_is_copied_with_its_old_time_is_read(keys, clock):
    keys.write(alice="weight: 1")
    keys.serve()
    old = keys.path.stat()
    keys.path.write_text(keys.path.read_text().replace("alice", "bobby"))
    os.utime(keys.path, ns=(old.st_atime_ns, old.st_mtime_ns))
    clock.time_s += 1.0
    assert (await keys.ask("bobby")).status == 200


async def test_a_changed_file_is_read_within_a_second(keys, clock):
    keys.write(alice="weight: 1")
    keys.serve()
    keys.write(bob="weight: 1")
    assert (await keys.ask("bob")).status == 401, "looked at once a second"
    clock.time_s += 1.0
    assert (await keys.ask("bob")).status == 200
    assert (await keys.ask("alice")).status == 401


async def test_a_broken_file_keeps_the_old_keys_and_says_so_once(keys, clock, capsys):
    keys.write(alice="weight: 1")
    keys.serve()
    keys.put("keys: {alice: {key: top-secret, weight: -1}}")
    for _ in range(3):
        clock.time_s += 1.0
        assert (await keys.ask("alice")).status == 200
    keys.path.unlink()
    clock.time_s += 1.0
    assert (await keys.ask("alice")).status == 200
    log = "".join(capsys.readouterr())
    assert log.count("api_keys_not_reloaded") == 2
    assert "keys.alice.weight" in log
    assert "top-secret" not in log
    assert "alice-key" not in log


async def test_a_server_does_not_start_with_a_broken_file(keys):
    with pytest.raises(ConfigError, match="api_keys_file"):
        keys.serve()
    keys.put("keys: 5")
    with pytest.raises(ConfigError, match="keys"):
        keys.serve()


async def test_a_limit_that_changes_begins_anew(keys, clock):
    keys.write(alice="requests_per_minute: 1")
    keys.serve()
    assert [(await keys.ask("alice")).status for _ in range(2)] == [200, 429]
    keys.write(alice="requests_per_minute: 2")
    clock.time_s += 1.0
    assert [(await keys.ask("alice")).status for _ in range(3)] == [200, 200, 429]


async def test_each_of_two_ingresses_grants_its_share(keys, client, clock):
    keys.write(alice="requests_per_minute: 4, concurrent_requests: 4, tokens_per_minute: 6000")
    settings = ApiSettings(api_keys_file=keys.path, n_ingress=2)
    for _ in range(2):
        keys.app = build_api(Fleet([ServedModel({"0": client})]), settings, clock=clock)
        wires = [await keys.ask("alice") for _ in range(3)]
        assert [wire.status for wire in wires] == [200, 200, 429]
        assert wires[0].headers["x-ratelimit-limit-requests"] == "2"
        assert wires[0].headers["x-ratelimit-limit-tokens"] == "3000"


@pytest.mark.parametrize("path", ["/props", "/tokenizer_info", "/lora-adapters"])
async def test_models_of_others_are_not_told_of(keys, get, path):
    keys.write(alice="models: [other]", bob="models: [fake]")
    keys.serve()
    found = [await get(path, app=keys.app, headers=[("x-api-key", f"{who}-key")]) for who in ("alice", "bob")]
    assert [wire.status for wire in found] == [403, 200]
