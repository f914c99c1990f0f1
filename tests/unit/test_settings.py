"""What an operator may set, and what is said about what may not."""

import ast
import json
import math
import pickle
import re
from dataclasses import asdict
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.cli import app
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.engine import opening
from cobali_ray.errors import ConfigError, QueueFullError
from cobali_ray.settings import NOT_SETTINGS, PLACES, EngineSettings, read_settings
from cobali_ray.settings.engine import GROUPS

REPOSITORY = Path(__file__).parents[2]


def limits_of(**values):
    settings = read_settings(values)
    n_ctx = settings.llama.n_ctx
    n_slots = settings.limits.n_slots
    return settings.limits.on(n_slots, n_ctx, n_cells=n_slots * n_ctx)


def test_the_environment_wins_over_the_file(monkeypatch):
    monkeypatch.setenv("COBALI_N_SLOTS", "3")
    monkeypatch.setenv("COBALI_API_KEYS", "one, two")
    assert read_settings({"n_slots": 8}).limits.n_slots == 3
    assert read_settings({}).api.api_keys == ("one", "two")
    assert EngineSettings(n_slots=8).limits.n_slots == 8, "what is made in code is what it says"


@pytest.mark.parametrize("service", ["COBALI", "COBALI_SERVE_SVC"])
def test_a_service_of_kubernetes_with_the_servers_name_is_no_setting(monkeypatch, service):
    address = "tcp://10.96.0.7:8000"
    for name, value in (
        ("SERVICE_HOST", "10.96.0.7"),
        ("SERVICE_PORT", "8000"),
        ("SERVICE_PORT_HTTP", "8000"),
        ("PORT", address),
        ("PORT_8000_TCP", address),
        ("PORT_8000_TCP_PROTO", "tcp"),
        ("PORT_8000_TCP_PORT", "8000"),
        ("PORT_8000_TCP_ADDR", "10.96.0.7"),
    ):
        monkeypatch.setenv(f"{service}_{name}", value)
    assert read_settings({}) == EngineSettings()
    monkeypatch.setenv("COBALI_PORT", "8001")
    with pytest.raises(ConfigError, match="COBALI_PORT: there is no such setting"):
        read_settings({})


@pytest.mark.parametrize("name", ["cache_dir", "log_ticks", "disk_cache_dir", "data_dir", "api_keys_file"])
def test_a_path_may_begin_at_home(name):
    assert read_settings({name: "~/there"}).values()[name] == Path.home() / "there"
    with pytest.raises(ConfigError, match=f"^{name}: ~nobody-here/there is in the home folder of no user"):
        read_settings({name: "~nobody-here/there"})


def test_each_setting_has_one_name_and_one_place():
    settings = EngineSettings()
    assert settings.values().keys() == PLACES.keys()
    assert len(PLACES) == sum(map(len, (asdict(getattr(settings, group)) for group in GROUPS))) + sum(
        name not in GROUPS for name in EngineSettings.model_fields
    ), "no two groups have a setting of one name"
    assert {name for name in PLACES if name not in settings.model_dump()} == {
        "api_keys",
        "otlp_endpoint",
        "data_url",
    }


def test_other_values_are_put_into_their_groups():
    settings = EngineSettings(n_slots=2, api_keys=["k"]).replaced(n_slots=3, n_ctx=64, model_id="m")
    assert EngineSettings(**settings.values()) == settings
    assert (settings.limits.n_slots, settings.llama.n_ctx, settings.names) == (3, 64, ("m",))
    assert settings.api.api_keys == ("k",)


@pytest.mark.parametrize("group", GROUPS)
def test_no_group_is_written_in_a_file(group):
    with pytest.raises(ConfigError, match="there is no such setting"):
        read_settings({group: {}})


@pytest.mark.parametrize("value", [("a", "b"), ["a", "b"], "a,b", "a, b,"])
def test_names_may_be_a_list_or_a_comma_list(value):
    assert read_settings({"model_aliases": value}).model_aliases == ("a", "b")


@pytest.mark.parametrize("name", ["flash_attn", "device_sampling"])
@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_bare_words_of_yaml_are_no_booleans(name, word):
    assert read_settings(yaml.safe_load(f"{name}: {word}")).values()[name] == word


@pytest.mark.parametrize(
    ("values", "setting", "words"),
    [
        pytest.param({"n_slot": 4}, "n_slot", "did you mean n_slots?", id="misspelt"),
        pytest.param({"colour": 4}, "colour", "no such setting", id="like-nothing-there-is"),
        pytest.param({"n_slots": 0}, "n_slots", "got 0", id="too-small"),
        pytest.param({"n_slots": 257}, "n_slots", "got 257", id="too-many"),
        pytest.param({"n_slots": "many"}, "n_slots", "'many'", id="no-number"),
        pytest.param({"selector": "gpu"}, "selector", "cuda", id="no-such-selector"),
        pytest.param({"replicas": 2, "min_replicas": 3}, "min_replicas", "replicas: 2", id="least-of-most"),
        pytest.param({"replicas": 2, "min_replicas": 1, "load": "on_demand"}, "min_replicas", "on_demand",
            id="loaded-and-not"),
        pytest.param({"kv_cells": 99_999_999}, "kv_cells", "n_slots * n_ctx", id="more-cells-than-usable"),
        pytest.param({"kv": "split", "kv_cells": 4096}, "kv_cells", "unified", id="cells-of-a-split-cache"),
        pytest.param({"token_budget": 4, "n_slots": 8}, "token_budget", "cannot feed", id="budget-starves"),
        pytest.param({"type_k": "f32"}, "type_k", "q8_0", id="no-such-type"),
        pytest.param({"type_v": "q8_0", "flash_attn": "off"}, "type_v", "flash_attn",
            id="no-plain-attention"),
        pytest.param({"disk_cache_gib": 0}, "disk_cache_gib", "got 0", id="no-disk"),
        pytest.param({"stall_timeout_s": 0}, "stall_timeout_s", "got 0", id="no-patience"),
        pytest.param({"itl_target_ms": "soon"}, "itl_target_ms", "'auto' or 'off' (got 'soon')",
            id="no-word"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named(values, setting, words):
    with pytest.raises(ConfigError) as caught:
        read_settings(values)
    assert caught.value.setting == setting
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{setting}: ")


FLOATS = sorted(
    name
    for kind in (EngineSettings, *GROUPS.values())
    for name, hint in get_type_hints(kind).items()
    if name in PLACES and "float" in str(hint)
)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan"])
def test_no_number_is_infinite_or_none_at_all(name, value):
    with pytest.raises(ConfigError) as caught:
        read_settings({name: value})
    assert caught.value.setting == name


def test_there_are_numbers():
    assert {"itl_target_ms", "stall_timeout_s"} <= set(FLOATS)


@pytest.mark.parametrize("name", ["api_keys", "model_aliases"])
@pytest.mark.parametrize("value", [[""], [" "], ["good", ""], ["good "], "", " ", ","])
def test_a_name_that_nobody_could_send_is_none(name, value):
    with pytest.raises(ConfigError, match="must not be empty") as caught:
        read_settings({name: value})
    assert caught.value.setting == name


def test_an_empty_variable_does_not_open_the_server_and_is_named(monkeypatch):
    monkeypatch.setenv("COBALI_API_KEYS", "")
    with pytest.raises(ConfigError, match="api_keys"):
        read_settings({"api_keys": ["good"]})


SECRET = 8154711


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"api_keys": [SECRET]}, id="number"),
        pytest.param({"api_keys": SECRET}, id="no-list"),
        pytest.param({"api_keys": {"key": f"{SECRET}"}}, id="mapping"),
        pytest.param({"api_keys": ["good", f"{SECRET} "]}, id="space"),
        pytest.param({"api_key": f"{SECRET}"}, id="misspelt"),
        pytest.param({"otlp_endpoint": f"me:{SECRET}@host"}, id="password-in-a-url"),
        pytest.param({"n_slots": 0, "api_keys": [f"{SECRET}"]}, id="beside-the-fault"),
    ],
)
def test_no_error_repeats_a_secret(values):
    with pytest.raises(ConfigError) as caught:
        read_settings(values)
    with pytest.raises(ValidationError) as by_serve:
        EngineSettings.model_validate(values)
    assert f"{SECRET}" not in f"{caught.value} {by_serve.value}"


def test_settings_do_not_show_their_secrets():
    settings = read_settings({"api_keys": [f"{SECRET}"], "otlp_endpoint": f"http://me:{SECRET}@host"})
    assert f"{SECRET}" not in repr(settings)
    assert f"{SECRET}" not in settings.model_dump_json(), "which `cobali run --json` prints"
    assert pickle.loads(pickle.dumps(settings)) == settings, "they reach the engine all the same"


def refused(*words):
    """Return why `cobali serve` does not start; a server that reads its file again goes on as it was."""
    error = CliRunner().invoke(app, ["serve", *words]).exception
    assert isinstance(error, ConfigError)
    assert f"{SECRET}" not in str(error)
    return str(error)


@pytest.mark.parametrize("config", [f'args: {{api_keys: ["{SECRET}}}', f"a: [!{SECRET}]", f"a: *{SECRET}"])
def test_no_file_that_breaks_off_shows_a_secret(tmp_path, config):
    (tmp_path / "bad.yaml").write_text(config)
    assert "line 1, column" in refused("--config", f"{tmp_path}/bad.yaml")


@pytest.mark.parametrize("config", [b"a: 2026-13-45", b"a: \xff"], ids=["no-date", "no-text"])
def test_a_file_that_cannot_be_read_is_said_as_one_that_is_wrong(tmp_path, config):
    (tmp_path / "bad.yaml").write_bytes(config)
    assert "bad.yaml" in refused("--config", f"{tmp_path}/bad.yaml")


@pytest.mark.parametrize("said", [f"api_keys:{SECRET}", f"api_keys=[{SECRET}"])
def test_no_option_that_breaks_off_shows_a_secret(said):
    assert refused("--set", said)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("COBALI_N_SLOT", "did you mean COBALI_N_SLOTS?", id="misspelt"),
        pytest.param("cobali_n_slot", "did you mean COBALI_N_SLOTS?", id="lower-case-is-read-too"),
        pytest.param("COBALI_COLOUR", "no such setting", id="like-nothing-there-is"),
    ],
)
def test_a_variable_that_nobody_reads_is_named(monkeypatch, name, words):
    monkeypatch.setenv(name, f"{SECRET}")
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        read_settings({})
    assert caught.value.setting == name.upper()
    assert f"{SECRET}" not in str(caught.value)


NAMED = re.compile(r"\bCOBALI_[A-Z_]*[A-Z]\b")
TEXTS = ("README.md", "docs/*.md", "cobali_ray/**/*", "dashboards/**/*", "tools/*", "serve_config.yaml")


def test_every_variable_of_the_repository_is_read_by_somebody(monkeypatch):
    files = [path for glob in TEXTS for path in REPOSITORY.glob(glob)]
    texts = [path.read_text() for path in files if path.suffix in {".md", ".py", ".js", ".yaml", ".yml"}]
    named = {name for text in texts for name in NAMED.findall(text)}
    assert named >= {"COBALI_N_SLOTS", *NOT_SETTINGS}
    for name in NOT_SETTINGS:
        monkeypatch.setenv(name, "x")
    read_settings({})
    assert {name.removeprefix("COBALI_").lower() for name in named - NOT_SETTINGS} <= {*PLACES}


MEASURING = {"bench", "run.py", "trace", "terminal"}
"""They have options, no settings."""
OTHER_NAMES = {"config", "host", "port", "seed", "prompts_file", "HF_HOME"}
"""What a ConfigError names beside settings: files, fields of theirs, an option, another's variable."""


def names_in(tree):
    """Yield what the errors of a module call settings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("ConfigError"), args=[ast.Constant(str(name)), *_]):
                yield name
            case ast.Constant(str(text)) if id(node) not in docs:
                yield from re.findall(r"\bsetting (\w+)[).,;]", text)


def test_an_error_names_only_settings_that_there_are():
    folder = REPOSITORY / "cobali_ray"
    paths = [path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in MEASURING]
    texts = [text for path in paths if "ConfigError" in (text := path.read_text()) or "setting " in text]
    named = {name for text in texts for name in names_in(ast.parse(text))}
    assert {"n_ctx", "strict", "max_body_bytes", "model"} <= named
    unknown = named - {*PLACES, *OTHER_NAMES}
    assert not {name for name in unknown if not name.startswith("--")}


@pytest.mark.parametrize("what", ["requests", "tokens", "bytes of request bodies"])
def test_a_full_queue_names_a_setting(what):
    (name,) = re.findall(r"setting (\w+)", str(QueueFullError(what, 1, 1.0)))
    assert name in PLACES


def test_no_option_takes_somebody_else_s_key_from_the_environment():
    texts = [path.read_text() for path in (REPOSITORY / "cobali_ray").rglob("*.py")]
    taken = [words for text in texts for words in re.findall(r"envvar=(\[.+?\]|.+?[,)])", text)]
    assert {name for words in taken for name in re.findall(r"\w+", words)} == {"COBALI_KEY", "COBALI_API_KEY"}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("builtin:tiny:Q8_0", "tiny:Q8_0"),
        ("~/models/mine.gguf", "mine"),
        ("hf://o/r/q4/m.gguf@refs/pr/3", "m"),
        ("hf://o/r@v1/q4/m.gguf", "m"),
        ("hf://o/r:Q4_K_M", "r:Q4_K_M"),
        ("ollama://qwen2.5:0.5b", "qwen2.5:0.5b"),
        ("lmstudio://o/r/m.gguf", "m"),
        ("qwen2.5:0.5b", "qwen2.5:0.5b"),
    ],
)
def test_a_model_is_served_under_the_last_word_of_its_reference(model, name):
    assert read_settings({"model": model}).names == (name,)


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
    assert read_settings(values).llama.unified is unified


@pytest.mark.parametrize(
    ("values", "n_slots", "chunk", "budget"),
    [
        pytest.param({}, 16, 512, 528, id="a-chunk-beside-a-token-for-every-slot"),
        pytest.param({"n_slots": 1, "prefill_chunk": 0}, 1, 4096, 4096, id="one-slot-whole-prompts"),
        pytest.param({"prefill_chunk": 0}, 16, 4096, 4112, id="whole-prompts"),
        pytest.param({"token_budget": 64}, 16, 512, 64, id="own-budget"),
        pytest.param({"n_slots": 1, "n_ctx": 16}, 1, 512, 16, id="never-more-than-the-cache-holds"),
    ],
)
def test_modes_become_limits(values, n_slots, chunk, budget):
    limits = limits_of(**values)
    assert (limits.n_slots, limits.prefill_chunk, limits.token_budget) == (n_slots, chunk, budget)


def test_limits_take_what_the_backend_really_opened():
    backend = ScriptedBackend(n_slots=16, n_ctx_slot=100, n_cells=1500)
    backend.cuts_tails = False
    limits = opening.limits_of(backend, read_settings({"max_queue": 7, "n_ctx": "auto"}))
    assert (limits.n_ctx_slot, limits.n_cells, limits.max_queue) == (100, 1500, 7)
    assert limits.min_prefix == 0, "a cache that cannot cut tails reuses nothing"


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        EngineSettings().model = "other"


@pytest.mark.parametrize(
    "origin", ["https://chat.example/", "chat.example", "https://Chat.example", "https://"]
)
def test_what_no_browser_sends_is_no_origin(origin):
    with pytest.raises(ConfigError, match=r"allowed_origins.*is not an origin"):
        read_settings({"allowed_origins": [origin]})


def test_origins_are_read_like_other_lists():
    asked = read_settings({"allowed_origins": "https://chat.example:8443,null,app://x"})
    assert asked.api.allowed_origins == ("https://chat.example:8443", "null", "app://x")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param("model", SamplingParams(temperature=0.6, top_k=20), id="model"),
        pytest.param("openai", SamplingParams(), id="openai"),
        pytest.param({"temperature": 0.9}, SamplingParams(temperature=0.9, top_k=20), id="one-other"),
        pytest.param({"top_k": -1}, SamplingParams(temperature=0.6), id="all-tokens"),
    ],
)
def test_an_operator_has_the_last_word_on_defaults(said, expected, monkeypatch):
    advised = SamplingParams(temperature=0.6, top_k=20)
    assert read_settings({"default_sampling": said}).sampling(advised) == expected
    monkeypatch.setenv("COBALI_DEFAULT_SAMPLING", said if isinstance(said, str) else json.dumps(said))
    assert read_settings({}).sampling(advised) == expected


@pytest.mark.parametrize(
    "said", ["llama", {"temperature": -1}, {"top_k": 1.5}, {"seed": 1}, {"temp": 1}, {"top_p": "much"}]
)
def test_defaults_that_no_request_could_ask_for_are_none(said):
    with pytest.raises(ConfigError) as caught:
        read_settings({"default_sampling": said})
    assert caught.value.setting == "default_sampling"
