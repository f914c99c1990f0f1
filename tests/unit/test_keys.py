"""Keys and quotas: what a file says, whose a key is, what is left of a limit."""

import hashlib

import pytest

from cobali_ray.api.door.keys import NOBODY, Ring, Terms, key_salt, listed, parse
from cobali_ray.api.door.quota import RATE_HEADERS, Quota, duration
from cobali_ray.errors import ConfigError, RateLimitError

SECRET = "sk-very-secret"
FILE = f"""
keys:
  alice: {{key: alice-key, weight: 2, priority: 1, best_priority: -1, models: [a, b]}}
  bob:
    key_sha256: {hashlib.sha256(SECRET.encode()).hexdigest()}
    requests_per_minute: 60
"""


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_file_names_holders_and_their_terms():
    ring = parse(FILE)
    alice, bob = ring.find(bearer("alice-key")), ring.find({"x-api-key": SECRET})
    assert (alice.tenant, alice.salt) == ("alice", key_salt("alice-key"))
    assert (alice.terms.weight, alice.terms.best, alice.terms.models) == (2, -1, ("a", "b"))
    assert (bob.tenant, bob.terms, bob.salt) == ("bob", Terms(requests_per_minute=60), key_salt(SECRET))
    assert ring.find(bearer("other")) is ring.find({}) is None
    assert SECRET not in repr(ring)
    assert "alice-key" not in repr(ring)


def test_listed_keys_are_tenants_too():
    ring = listed(["one", "two"]).joined(parse(FILE))
    assert [ring.find(bearer(k)).tenant for k in ("one", "two", "alice-key")] == ["key-1", "key-2", "alice"]
    assert Ring().find({}) is NOBODY
    with pytest.raises(ConfigError, match="key-2 is the name of one of api_keys"):
        listed(["one", "two"]).joined(parse(FILE.replace("bob:", "key-2:")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "the file", id="empty"),
        pytest.param("keys: {}", "keys", id="no-keys"),
        pytest.param(f"keys: {{a: {{key: {SECRET}, weigth: 2}}}}", "keys.a.weigth", id="typo"),
        pytest.param(f"keys: {{a: {{key: {SECRET}, weight: 0}}}}", "keys.a.weight", id="range"),
        pytest.param(f"keys: {{a: {{key: {SECRET}, priority: 10}}}}", "keys.a.priority", id="class"),
        pytest.param(f"keys: {{a: {{key: {SECRET}, best_priority: 1}}}}", "best_priority", id="no-better"),
        pytest.param("keys: {a: {weight: 1}}", "key_sha256", id="no-key"),
        pytest.param("keys: {a: {key: 5}}", "keys.a.key", id="a-number"),
        pytest.param(f"keys: {{a: {{key: {SECRET}, key_sha256: {'a' * 64}}}}}", "one of", id="both"),
        pytest.param(f"keys: {{a: {{key: {SECRET}}}, b: {{key: {SECRET}}}}}", "same key", id="twice"),
        pytest.param(f"keys: {{'a b': {{key: {SECRET}}}}}", "keys", id="name"),
        pytest.param(f"keys: [{SECRET}", "YAML", id="no-yaml"),
        pytest.param(f"keys: {{a: {{key: {SECRET}, priority: 2026-13-45}}}}", "YAML", id="no-date"),
    ],
)
def test_a_wrong_file_says_where_and_shows_no_key(text, said):
    with pytest.raises(ConfigError, match=said) as error:
        parse(text)
    assert SECRET not in str(error.value)


def test_requests_per_minute_come_back_evenly():
    quota = Quota(Terms(requests_per_minute=60), 1, 0.0)
    for _ in range(60):
        quota.begin(0.0)
    with pytest.raises(RateLimitError) as error:
        quota.begin(0.25)
    assert error.value.retry_after_s == pytest.approx(0.75)
    quota.begin(1.0)
    with pytest.raises(RateLimitError):
        quota.begin(1.5)


def test_output_is_paid_when_it_is_known():
    quota = Quota(Terms(tokens_per_minute=600), 1, 0.0)
    quota.begin(0.0)
    quota.read(500, 0.0)
    quota.end(400, 0.0)
    with pytest.raises(RateLimitError) as error:
        quota.begin(0.0)
    assert (error.value.what, error.value.retry_after_s) == ("tokens per minute", pytest.approx(30.1))
    quota.begin(30.2)
    with pytest.raises(RateLimitError) as error:
        quota.read(100, 30.2)
    assert error.value.retry_after_s == pytest.approx(9.8)
    quota.read(100, 40.1)


def test_a_prompt_longer_than_a_minutes_tokens_needs_a_full_bucket():
    quota = Quota(Terms(tokens_per_minute=600), 1, 0.0)
    quota.read(5000, 0.0)
    with pytest.raises(RateLimitError) as error:
        quota.read(5000, 1.0)
    assert error.value.retry_after_s == pytest.approx(499)


def test_concurrent_requests():
    quota = Quota(Terms(concurrent_requests=2), 1, 0.0)
    quota.begin(0.0)
    quota.begin(0.0)
    with pytest.raises(RateLimitError, match="2 concurrent"):
        quota.begin(0.0)
    quota.end(0, 0.0)
    quota.begin(0.0)


def test_each_ingress_gives_out_its_share():
    terms = Terms(requests_per_minute=60, concurrent_requests=3)
    quota = Quota(terms, 2, 0.0)
    quota.begin(0.0)
    with pytest.raises(RateLimitError, match="1 concurrent"):
        quota.begin(0.0)
    assert dict(quota.headers(0.0))[b"x-ratelimit-limit-requests"] == b"30"


def test_what_is_left_is_told():
    quota = Quota(Terms(requests_per_minute=60, tokens_per_minute=6000), 1, 0.0)
    quota.begin(0.0)
    quota.read(1000, 0.0)
    told = {name.decode(): value.decode() for name, value in quota.headers(0.0)}
    assert list(told) == list(RATE_HEADERS)
    assert list(told.values()) == ["60", "59", "1.0s", "6000", "5000", "10.0s"]
    assert Quota(Terms(), 1, 0.0).headers(0.0) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.012, "12ms"), (3.5, "3.5s"), (60, "1m0s"), (365.2, "6m5s")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
