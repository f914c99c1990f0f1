"""Whatever the OpenAPI document allows is answered as the document says, and never with an error of ours."""

from contextlib import closing

import pytest
from fake_client import FakeApiClock, FakeClient
from hypothesis import HealthCheck, settings

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.backend.port import InfillMarks
from cobali_ray.settings import ApiSettings
from cobali_ray.store.database import Store


@pytest.fixture
def document(tmp_path):
    """The document as schemathesis reads it, over an app that answers."""
    import schemathesis  # takes seconds, and its plugin for pytest makes all requests while it collects

    client = FakeClient()
    client.infill = InfillMarks(0, 0, 0)
    with closing(Store(tmp_path)) as store:
        fleet = Fleet([ServedModel({"0": client})])
        app = build_api(fleet, ApiSettings(), clock=FakeApiClock(), store=store)
        yield (
            schemathesis.openapi.from_asgi("/openapi.json", app)
            .exclude(path="/debug/stream")  # endless
            .exclude(path="/lora-adapters", method="POST")  # 501, as it says
            .exclude(path="/v1/downloads", method="POST")  # 501 as well, unless a setting allows it
        )


SOME = {
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/models", "/v1/files",
    "/v1/batches", "/v1/conversations/{conversation_id}", "/completion", "/tokenize", "/api/chat", "/slots",
}  # fmt: skip
"""Of each API, and of each kind of answer."""


def failures(document, *modes, paths=None):
    """Try operations in these of schemathesis's ways to find requests; return what failed at which."""
    from schemathesis import checks
    from schemathesis.generation.hypothesis.builder import (
        HypothesisTestConfig,
        HypothesisTestMode,
        create_test,
    )

    judged = (
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    )

    @settings(max_examples=3, suppress_health_check=list(HealthCheck), derandomize=True)
    def answered(case):
        case.call_and_validate(checks=judged)

    config = HypothesisTestConfig(document.config, [HypothesisTestMode(mode) for mode in modes])
    failed, n_tried = {}, 0
    for result in document.get_all_operations():
        operation = result.ok()
        if paths is not None and operation.path not in paths:
            continue
        n_tried += 1
        try:
            create_test(operation=operation, test_func=answered, config=config)()
        except BaseExceptionGroup as group:
            failed[operation.label] = group.exceptions
        except AssertionError as error:
            failed[operation.label] = error
    assert n_tried >= len(paths or ()), "some are called otherwise now"
    return failed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("paths", [SOME, pytest.param(None, marks=pytest.mark.thorough)], ids=["some", "all"])
def test_routes_do_as_they_are_described(document, paths):
    assert not failures(document, "examples", "fuzzing", paths=paths)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_route_does_so_at_the_edges_of_every_value(document):
    assert not failures(document, "coverage")
