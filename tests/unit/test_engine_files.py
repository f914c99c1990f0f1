"""What tells a model's files from others, and what becomes of a model that cannot be served."""

import warnings

import pytest

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401 its own models use pydantic's old ways

from cobali_ray.actors.loaded_model import identity_of
from cobali_ray.engine import opening
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings


def test_another_projector_is_another_model(tmp_path):
    model, projector = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    model.write_bytes(b"m")
    projector.write_bytes(b"p")
    alone, before = identity_of(model, None), identity_of(model, projector)
    projector.write_bytes(b"another")
    assert len({alone, before, identity_of(model, projector)}) == 3
    assert identity_of(None, None) == "scripted"


def test_a_model_that_cannot_be_served_gives_its_memory_back(monkeypatch):
    closed = []
    backend = opening.open_backend(EngineSettings(model="builtin:scripted"), None)
    backend.close = lambda: closed.append(True)
    monkeypatch.setattr(opening, "open_backend", lambda *_: backend)

    def refuse(*_, **__):
        raise ConfigError("selector", "is not to be had")

    monkeypatch.setattr(opening, "engine_on", refuse)
    with pytest.raises(ConfigError):
        opening.open_engine(EngineSettings(model="builtin:scripted"), print)
    assert closed
