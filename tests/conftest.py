"""Shared settings of all tests."""

import os

from hypothesis import HealthCheck, settings

from cobali_ray.actors.node import RAY_FLAGS

# Their libraries are in environments of their own: `make clients`.
collect_ignore = ["clients"]

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# Ray reads them when it is first imported, and not only the tests of tests/ray import it.
for name, value in RAY_FLAGS.items():
    os.environ.setdefault(name, value)
