"""Answers of a real model that another engine began."""

from dataclasses import replace

import pytest
from test_llama_engine import Run, make_requests

from cobali_ray.core.request.events import Delta

pytestmark = pytest.mark.model

N = 12
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def whole(tiny):
    """What nobody disturbed, in the reproducible configuration."""
    requests = make_requests(N, seed=7, max_tokens=MAX_TOKENS)
    return requests, Run(tiny, requests)


def begun(requests, run, n_tokens):
    """Return the requests as they were when about `n_tokens` of each answer were told."""
    going = []
    for request in requests:
        said = []
        for event in run.recorder.events[request.request_id]:
            if isinstance(event, Delta) and len(said) < n_tokens:
                said += event.tokens
        if len(said) < len(run.answers[request.request_id]):
            going.append(replace(request, sent_tokens=tuple(said), attempt=1))
    return going


def test_what_was_said_stays_where_it_is_computed_like_a_prompt(tiny, whole):
    requests, run = whole
    going = begun(requests, run, 9)
    again = Run(tiny, going)
    for request in going:
        assert again.answers[request.request_id][: len(request.sent_tokens)] == list(request.sent_tokens)
    same = [again.answers[request.request_id] == run.answers[request.request_id] for request in going]
    assert sum(same) > len(same) / 2, "near-ties may fall otherwise, most tokens are no ties"
    n_rows = [len(request.prompt) + len(request.sent_tokens) for request in going]
    assert again.sequences[going[0].request_id].n_prompt == len(going[0].prompt)
    assert sum(stats.n_prefill for stats in again.ticks if stats) == sum(n_rows)
