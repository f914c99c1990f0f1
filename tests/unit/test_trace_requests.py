"""What a request's stay in a slot is drawn as, from records of ticks and requests."""

import pytest

from cobali_ray.core.views.stats import DECODE, PREFILL
from cobali_workloads.trace.requests import slot_rows

NOW_S = 10.0


def tick(at, *kinds, slot=0):
    """Return a tick whose pass lasts from `at` to `at` + 0.8 and computes spans of these kinds."""
    spans = [[slot, 0, 8 if kind == PREFILL else 1, kind] for kind in kinds]
    return {"tick_id": int(at), "started_s": at, "plan_s": 0.0, "forward_s": 0.8, "spans": spans}


def request(*stays, ended=None, first_token=0.9):
    return {
        "request_id": "r", "state": "generating", "n_prompt": 8, "n_cached": 0, "n_output": 3,
        "n_preempted": len(stays) - 1, "finish_reason": None, "error": None, "arrived_s": 0.0,
        "assigned_s": 0.0, "first_token_s": first_token, "ended_s": ended, "stays": stays,
    }  # fmt: skip


def drawn(one, ticks, slot=0):
    """Return (name, start, end, chunks) of what is drawn in the last stay."""
    stay = slot_rows([one], ticks, NOW_S)[slot][-1]
    return [(part.name, part.start_s, part.end_s, len(part.children)) for part in stay.children]


FIRST = (0, 0.0, 1.9)
CHUNKS = [tick(0.0, PREFILL), tick(1.0, DECODE), tick(3.0, PREFILL), tick(4.0, PREFILL)]


@pytest.mark.parametrize(
    ("one", "ticks", "parts"),
    [
        pytest.param(request(FIRST, (0, 3.0, None)), [*CHUNKS, tick(5.0, DECODE), tick(6.0, DECODE)],
            [("prefill again", 3.0, 5.0, 2), ("decode", 5.0, NOW_S, 0)], id="decodes-again"),
        pytest.param(request(FIRST, (0, 3.0, None)), CHUNKS, [("prefill again", 3.0, NOW_S, 2)],
            id="the-trace-ends-in-prefill"),
        pytest.param(request(FIRST, (0, 3.0, 4.9), ended=4.9), [*CHUNKS, tick(5.0, DECODE)],
            [("prefill again", 3.0, 4.9, 2)], id="cancelled-in-prefill"),
        pytest.param(request(FIRST, (0, 3.0, 3.9), (1, 8.0, None)), [*CHUNKS, tick(8.0, PREFILL, slot=1)],
            [("prefill again", 3.0, 3.9, 1)], id="preempted-in-prefill"),
        pytest.param(request(FIRST, (0, 3.0, None)), [], [("prefill again", 3.0, NOW_S, 0)],
            id="nothing-computed-yet"),
        pytest.param(request(FIRST, (0, 3.0, None)), [tick(7.0, DECODE), tick(8.0, DECODE)],
            [("decode", 3.0, NOW_S, 0)], id="computed-again-before-the-recording"),
        pytest.param(request(FIRST, (0, 3.0, None)), [*CHUNKS, tick(5.0, DECODE, slot=1)],
            [("prefill again", 3.0, NOW_S, 2)], id="another-slot-decodes"),
        pytest.param(request((0, 0.0, None)), CHUNKS[:2],
            [("prefill", 0.0, 0.9, 1), ("decode", 0.9, NOW_S, 0)], id="never-preempted"),
    ],
)  # fmt: skip
def test_decode_begins_where_something_was_decoded(one, ticks, parts):
    assert [part for part in drawn(one, ticks) if part[1] < part[2]] == parts


@pytest.mark.parametrize(
    ("received", "ttft_s"), [({}, 0.9), ({"received_s": None}, 0.9), ({"received_s": -1.0}, 1.9)]
)
def test_ttft_is_the_whole_way(received, ttft_s):
    one = request(FIRST, ended=1.9) | received
    (stay,) = slot_rows([one], CHUNKS, NOW_S)[0]
    assert stay.args["ttft_s"] == ttft_s
