"""Names of models for a shell's completion: read from folders alone, for it has no time for more."""

from __future__ import annotations


def complete_model(incomplete: str) -> list[tuple[str, str]]:
    """Return the models whose names begin as typed, each with where it is from; files the shell names."""
    from cobali_ray.models.local import local_models
    from cobali_ray.models.reference import SOURCES
    from cobali_ray.models.registry import available

    sources = {model.reference: "built in" for model in available() if model.default}
    for model in local_models():
        sources[model.reference] = SOURCES.get(model.source, "Hugging Face")
    begun = [(name, source) for name, source in sources.items() if name.startswith(incomplete)]
    short = [(name.partition("://")[2], source) for name, source in sources.items()]
    return begun or [(name, source) for name, source in short if name and name.startswith(incomplete)]
