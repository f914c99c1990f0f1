"""What an operator may set, and what is said about what may not."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings, read_settings

REPOSITORY = Path(__file__).parents[2]


def limits_of(**values):
    settings = read_settings(values)
    return settings.limits(n_ctx_slot=settings.n_ctx, n_cells=settings.n_slots_used * settings.n_ctx)


def test_the_environment_wins_over_the_file(monkeypatch):
    monkeypatch.setenv("COBALI_N_SLOTS", "3")
    monkeypatch.setenv("COBALI_API_KEYS", "one, two")
    assert read_settings({"n_slots": 8}).n_slots == 3
    assert EngineSettings.model_validate({"n_slots": 8}).n_slots == 3, "as Serve reads serve_config.yaml"
    assert read_settings({}).api_keys == ("one", "two")


@pytest.mark.parametrize("value", [("a", "b"), ["a", "b"], "a,b", "a, b,"])
def test_names_may_be_a_list_or_a_comma_list(value):
    assert read_settings({"model_aliases": value}).model_aliases == ("a", "b")


@pytest.mark.parametrize("name", ["flash_attn", "device_sampling"])
@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_bare_words_of_yaml_are_no_booleans(name, word):
    assert getattr(read_settings(yaml.safe_load(f"{name}: {word}")), name) == word


@pytest.mark.parametrize(
    ("values", "setting", "words"),
    [
        pytest.param({"n_slotz": 4}, "n_slotz", "not permitted", id="misspelt"),
        pytest.param({"n_slots": 0}, "n_slots", "got 0", id="too-small"),
        pytest.param({"n_slots": 257}, "n_slots", "got 257", id="too-many"),
        pytest.param({"n_slots": "many"}, "n_slots", "'many'", id="no-number"),
        pytest.param({"mode": "batch"}, "mode", "continuous", id="no-such-mode"),
        pytest.param({"prefill_order": "lifo"}, "prefill_order", "packed", id="no-such-order"),
        pytest.param({"selector": "gpu"}, "selector", "cuda", id="no-such-selector"),
        pytest.param({"kv_cells": 99_999_999}, "kv_cells", "n_slots * n_ctx", id="more-cells-than-usable"),
        pytest.param({"kv": "split", "kv_cells": 4096}, "kv_cells", "unified", id="cells-of-a-split-cache"),
        pytest.param({"token_budget": 4, "n_slots": 8}, "token_budget", "cannot feed", id="budget-starves"),
        pytest.param({"stall_timeout_s": 0}, "stall_timeout_s", "got 0", id="no-patience"),
    ],
)
def test_a_bad_setting_is_named(values, setting, words):
    with pytest.raises(ConfigError) as caught:
        read_settings(values)
    assert caught.value.setting == setting
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{setting}: ")


def test_a_bad_value_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("COBALI_N_CTX", "huge")
    with pytest.raises(ConfigError) as caught:
        read_settings({})
    assert caught.value.setting == "n_ctx"


@pytest.mark.parametrize(
    ("values", "unified"),
    [
        pytest.param({}, False, id="split-by-default"),
        pytest.param({"kv": "unified"}, True, id="asked-for"),
        pytest.param({"kv_cells": 8192}, True, id="overcommitted"),
        pytest.param({"kv": "unified", "kv_cells": 8192}, True, id="both"),
    ],
)
def test_the_cache_is_unified_where_it_is_overcommitted(values, unified):
    assert read_settings(values).unified is unified


@pytest.mark.parametrize(
    ("values", "n_slots", "chunk", "budget"),
    [
        pytest.param({}, 16, 512, 528, id="a-chunk-beside-a-token-for-every-slot"),
        pytest.param({"mode": "sequential"}, 1, 4096, 4096, id="one-slot-whole-prompts"),
        pytest.param({"mode": "sequential", "token_budget": 4}, 1, 4096, 4096, id="budget-is-not-asked"),
        pytest.param({"prefill_chunk": 0}, 16, 4096, 4112, id="whole-prompts"),
        pytest.param({"token_budget": 64}, 16, 512, 64, id="own-budget"),
        pytest.param({"n_slots": 1, "n_ctx": 16}, 1, 512, 16, id="never-more-than-the-cache-holds"),
    ],
)
def test_modes_become_limits(values, n_slots, chunk, budget):
    limits = limits_of(**values)
    assert (limits.n_slots, limits.prefill_chunk, limits.token_budget) == (n_slots, chunk, budget)


def test_limits_take_what_the_backend_really_opened():
    limits = read_settings({"max_queue": 7}).limits(n_ctx_slot=100, n_cells=1600, cuts_tails=False)
    assert (limits.n_ctx_slot, limits.n_cells, limits.max_queue) == (100, 1600, 7)
    assert limits.min_prefix == 0, "a cache that cannot cut tails reuses nothing"


def test_the_repository_s_config_is_valid():
    config = yaml.safe_load((REPOSITORY / "serve_config.yaml").read_text())
    (application,) = config["applications"]
    assert application["import_path"] == "cobali_ray.actors.app:build"
    EngineSettings.model_validate(application["args"])


def test_a_misspelt_key_of_the_config_is_named_by_what_serve_calls():
    with pytest.raises(ValidationError, match="n_slotz"):
        EngineSettings.model_validate({"n_slotz": 4})


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        EngineSettings().n_slots = 4
