"""What the model is taught of the server is true: settings, defaults, metrics and routes exist."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from telemetry_records import fed_collector

from cobali_ray.api.app import build_api
from cobali_ray.api.fields import NEUTRAL_FIELDS, REFUSED_FIELDS
from cobali_ray.api.schema import ChatBody, CompletionBody
from cobali_ray.api.settings import ApiSettings
from cobali_ray.settings import EngineSettings
from training.corpus import server

BLOCKS = {block.name: block for block in server.blocks()}
TEXTS = [
    text
    for block in server.blocks()
    for text in (*block.wordings, *block.aliases, block.answer, *block.bullets)
]
NOT_ASKED = {"scripted_tick_s"}
"""Settings that no entry explains."""


def test_every_setting_is_explained():
    known = {alias for block in server.defined() for alias in block.aliases} | set(BLOCKS)
    said = " ".join(TEXTS)
    for name in set(EngineSettings.model_fields) - NOT_ASKED:
        assert name in known or re.search(rf"\b{name}\b", said), name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in EngineSettings.model_fields.items()
        if isinstance(field.default, int | float)
        and not isinstance(field.default, bool)
        and name not in NOT_ASKED
    ],
)
def test_defaults_are_right(name):
    default = EngineSettings.model_fields[name].default
    assert re.search(rf"\b{default:g}\b" if default < 1e5 else str(default), BLOCKS[name].answer), name


def test_every_metric_that_is_named_exists():
    exposition = fed_collector().exposition()
    families = {family.name.removesuffix("_total") for family in text_string_to_metric_families(exposition)}
    named = {word for text in TEXTS for word in re.findall(r"\bcobali_[a-z0-9_]+", text)} - {"cobali_ray"}
    assert {name.removesuffix("_total") for name in named} <= families | {
        f.removesuffix("_total") for f in families
    }


def test_every_route_that_is_named_exists():
    app = build_api(client=None, settings=ApiSettings())
    served = set(app.openapi()["paths"]) | {"/docs", "/openapi.json"}
    pattern = (
        r"(?<![\w./:~])/(?:v1/[\w/]+|docs|health|ready|metrics|tokenize|detokenize|debug/\w+|openapi\.json)\b"
    )
    assert {path for text in TEXTS for path in re.findall(pattern, text)} <= served


@pytest.mark.parametrize(
    "name", ["max_tokens", "stream", "stop", "logprobs", "echo", "timeout_s", "stream_options"]
)
def test_parameters_that_are_explained_exist(name):
    assert name in BLOCKS
    assert name in set(ChatBody.model_fields) | set(CompletionBody.model_fields)


def test_what_is_called_refused_or_without_effect_is_so():
    assert {"cache_prompt", "metadata", "store", "user"} <= set(NEUTRAL_FIELDS)
    assert {"tools", "response_format", "grammar", "mirostat", "tool_choice"} <= set(REFUSED_FIELDS)
