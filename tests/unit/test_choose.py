"""Which engine gets a request."""

import pytest

from cobali_ray.core.choose import EngineView, least_open
from cobali_ray.core.request import Request

REQUEST = Request(request_id="r", prompt=(1, 2, 3), max_tokens=5)


@pytest.mark.parametrize(
    ("engines", "chosen"),
    [
        pytest.param([EngineView("a", 9, 1), EngineView("b", 8, 2)], "b", id="fewest-tokens-open"),
        pytest.param([EngineView("a", 8, 2), EngineView("b", 8, 1)], "b", id="ties-in-turn"),
        pytest.param([EngineView("a", 8, 0), EngineView("b", 8, 0)], "a", id="never-chosen-in-order"),
        pytest.param([EngineView("b", 1000, 7)], "b", id="the-only-one"),
    ],
)
def test_the_engine_with_the_least_to_do_is_chosen(engines, chosen):
    assert least_open(REQUEST, engines).engine_id == chosen
