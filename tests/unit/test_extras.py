"""A missing extra is named, with what to install."""

import pytest

from cobali_ray.errors import MissingExtraError
from cobali_ray.extras import require_extra


def test_a_missing_package_names_its_extra():
    require_extra("bench", "json")
    with pytest.raises(MissingExtraError, match=r"no_such_package.*pip install 'cobali-ray\[bench\]'"):
        require_extra("bench", "json", "no_such_package")
    with pytest.raises(MissingExtraError, match=r"no_such_package\.inside.*pip install 'cobali-ray\[otel\]'"):
        require_extra("otel", "no_such_package.inside")
