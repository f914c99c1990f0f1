"""Which requests are spans."""

import pytest

from cobali_ray.api.door.frame import TRACED, route_traced


@pytest.mark.parametrize("route", TRACED)
def test_a_route_is_named_as_it_is_declared(route):
    assert route_traced(route) == route
    assert route_traced(f"/prefix{route}") == route


def test_other_names_of_a_route_are_traced_like_it_and_others_are_not():
    names = {
        "/chat/completions", "/completions", "/rerank", "/v1/reranking", "/api/embeddings", "/embeddings",
    }  # fmt: skip
    assert names <= set(TRACED)
    assert [route_traced(path) for path in ("/metrics", "/v1/models", "/tokenize", "/ui/app.js")] == [
        None
    ] * 4
