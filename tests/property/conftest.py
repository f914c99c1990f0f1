"""What all properties are tested with."""

import pytest

from cobali_ray.core.cache import slots


@pytest.fixture(autouse=True, scope="module")
def _short_cuts():
    """Have idle prefixes cut a few tokens at a time: those of these tests are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "CUT", 3)
        yield
