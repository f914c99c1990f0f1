"""Whatever the OpenAPI document allows is answered as the document says, and never with an error of ours."""

import tempfile
from pathlib import Path

import pytest
import schemathesis
from fake_client import FakeApiClock, FakeClient
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.config import SchemathesisConfig

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.backend.port import InfillMarks
from cobali_ray.settings import ApiSettings
from cobali_ray.store.database import Store

FOLDER = tempfile.TemporaryDirectory()
CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


def app():
    client = FakeClient()
    client.infill = InfillMarks(0, 0, 0)
    fleet, store = Fleet([ServedModel({"0": client})]), Store(Path(FOLDER.name))
    return build_api(fleet, ApiSettings(), clock=FakeApiClock(), store=store)


def described(*phases):
    """Return what the document says, to be tried in these of schemathesis's ways to find requests."""
    ways = {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")}
    config = SchemathesisConfig.from_dict({"phases": ways})
    return (
        schemathesis.openapi.from_asgi("/openapi.json", app(), config=config)
        .exclude(path="/debug/stream")  # endless
        .exclude(path="/lora-adapters", method="POST")  # 501, as it says
        .exclude(path="/v1/downloads", method="POST")  # 501 as well, unless a setting allows it
    )


@described("examples", "fuzzing").parametrize()
@settings(max_examples=6, suppress_health_check=list(HealthCheck), derandomize=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_route_does_as_it_is_described(case):
    case.call_and_validate(checks=CHECKS)


@pytest.mark.thorough
@described("coverage").parametrize()
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_route_does_so_at_the_edges_of_every_value(case):
    case.call_and_validate(checks=CHECKS)
