"""The operator's settings: flat names outside, grouped by the part they configure inside.

A setting is one field, with its type, bounds, default and docstring, of the class where it acts: in
`core/request/limits.py`, `backend/config.py`, `api.py` or `engine.py` here. Names and places are derived from
these.
"""

from cobali_ray.settings.api import ApiSettings
from cobali_ray.settings.engine import PLACES, AdapterSettings, EngineSettings, listed
from cobali_ray.settings.files import read_text
from cobali_ray.settings.read import NOT_SETTINGS, OF_ALL, read_settings, settings_of_engines

__all__ = [
    "NOT_SETTINGS", "OF_ALL", "PLACES", "AdapterSettings", "ApiSettings", "EngineSettings", "listed",
    "read_settings", "read_text", "settings_of_engines",
]  # fmt: skip
