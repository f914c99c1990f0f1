"""Whatever the OpenAPI document allows is answered as the document says, and never with an error of ours."""

import pytest
import schemathesis
from fake_client import FakeApiClock, FakeClient
from hypothesis import HealthCheck, settings
from schemathesis import checks

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.backend.port import InfillMarks
from cobali_ray.settings import ApiSettings

CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


def app():
    client = FakeClient()
    client.infill = InfillMarks(0, 0, 0)
    return build_api(Fleet([ServedModel({"0": client})]), ApiSettings(), clock=FakeApiClock())


document = (
    schemathesis.openapi.from_asgi("/openapi.json", app())
    .exclude(path="/debug/stream")  # endless
    .exclude(path="/lora-adapters", method="POST")  # 501, as it says
)


@document.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_route_does_as_it_is_described(case):
    case.call_and_validate(checks=CHECKS)
