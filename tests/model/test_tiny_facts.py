"""What builtin:tiny is taught of the server is true of the server that runs."""

import httpx2
import pytest

from cobali_ray.settings import EngineSettings
from tests.page.stack import Site
from training.corpus import server_facts
from training.facts import observed_at

pytestmark = pytest.mark.model

DEFAULTS = {name: setting.default for name, setting in EngineSettings.model_fields.items()}


@pytest.fixture(scope="module")
def site():
    with Site(model="builtin:tiny", n_ctx=4096, n_threads=1) as site:
        yield site


def test_what_it_was_taught_of_the_server_is_true_of_the_server(site):
    assert observed_at(site.url) == server_facts.known(), (
        "the tables state what is no longer so: see `python -m training facts` in training/README.md"
    )


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        pytest.param(
            "POST /v1/chat/completions: tools",
            lambda models, api, _: api["components"]["schemas"]["ChatBody"]["properties"].pop("tools"),
            id="a-field",
        ),
        pytest.param(
            "POST /v1/embeddings", lambda models, api, _: api["paths"].pop("/v1/embeddings"), id="a-path"
        ),
        pytest.param(
            "tiny: image",
            lambda models, api, _: models["data"][0]["architecture"]["input_modalities"].append("image"),
            id="what-the-model-reads",
        ),
        pytest.param("default n_slots", lambda _, __, defaults: defaults.update(n_slots=8), id="a-default"),
        pytest.param("setting mmproj", lambda _, __, defaults: defaults.pop("mmproj"), id="a-setting"),
    ],
)
def test_a_change_of_a_capability_is_seen(site, claim, change):
    models, api = (httpx2.get(f"{site.url}{path}").json() for path in ("/v1/models", "/openapi.json"))
    assert server_facts.observed(models, api, DEFAULTS) == server_facts.known()
    defaults = dict(DEFAULTS)
    change(models, api, defaults)
    seen = server_facts.observed(models, api, defaults)
    assert {name for name in seen if seen[name] != server_facts.known()[name]} == {claim}
