"""Refused keys in the log: from where, how many, not too often, and never the key."""

from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from cobali_ray.api.door.ids import CLIENT_HEADER
from cobali_ray.api.door.refused import MAX_ADDRESSES, MAX_LINES, PERIOD_S, RefusedKeys, log_refusal


def test_an_address_has_a_line_at_once_and_then_one_a_minute_with_all_that_came_between():
    keys = RefusedKeys()
    told = [(now_s, n) for now_s in range(1000) if (n := keys.note("10.0.0.7", float(now_s))) is not None]
    assert told[0] == (0, 1)
    assert all(later - earlier == PERIOD_S for (earlier, _), (later, _) in pairwise(told))
    assert sum(n for _, n in told) == told[-1][0] + 1, "each is told of once"


def test_many_addresses_have_few_lines_and_little_memory():
    keys = RefusedKeys()
    told = [keys.note(f"10.0.{i >> 8}.{i & 255}", 5.0) for i in range(5 * MAX_ADDRESSES)]
    assert sum(n is not None for n in told) == MAX_LINES
    assert len(keys._addresses) == MAX_ADDRESSES
    assert keys.note("10.9.9.9", 5.0 + PERIOD_S) == 1, "the next minute has lines again"


@pytest.mark.parametrize(
    ("headers", "behind_front", "address", "key"),
    [
        pytest.param({"authorization": "Bearer secret"}, False, "10.0.0.7", "wrong", id="peer"),
        pytest.param({CLIENT_HEADER: "fd00::1"}, True, "fd00::1", "missing", id="front"),
        pytest.param({CLIENT_HEADER: "1.2.3.4"}, False, "10.0.0.7", "missing", id="a-client-lies"),
        pytest.param({CLIENT_HEADER: "\n{}"}, True, "unknown", "missing", id="no-address"),
        pytest.param({"x-api-key": "secret"}, True, "unknown", "wrong", id="nothing-said"),
    ],
)
def test_a_line_says_from_where_and_never_the_key(headers, behind_front, address, key):
    with capture_logs() as logs:
        log_refusal(RefusedKeys(), headers, "10.0.0.7", behind_front=behind_front, now_s=1e6)
    (line,) = logs
    assert (line["event"], line["address"], line["key"], line["n_requests"]) == (
        "key_refused", address, key, 1,
    )  # fmt: skip
    assert "secret" not in str(line)
