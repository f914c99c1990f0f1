"""What the corpus says of settings may age: it is said before a training, and fails nothing."""

import pytest

from training.stale import stale

DEFAULTS = {"n_slots": 16, "prefill_chunk": 512, "flash_attn": "auto", "strict": False, "scripted_tick_s": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({}, [], id="as-it-was"),
        pytest.param({"n_slots": 33}, ["the entry on n_slots does not say 33"], id="another-default"),
        pytest.param({"brand_new": None}, ["no entry explains brand_new"], id="a-new-setting"),
    ],
)
def test_stale(changes, said):
    assert stale(DEFAULTS | changes) == said
