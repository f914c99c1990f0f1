"""How much memory is free: what Linux and the control groups say, as trees of files."""

from pathlib import Path

import pytest
from machine_files import GB, v1, v2, write

from cobali_ray.backend.memory import available_bytes, most_bytes

UNLIMITED_V1 = 2**63 - 4096


def group(limit, used, *, cached=0):
    """Return the files of a group of version 2; `cached` of `used` is file cache."""
    stat = f"anon {used - cached}\ninactive_file {cached // 4}\nactive_file {cached - cached // 4}"
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def old_group(limit, used, *, cached=0):
    """Return those of version 1, where a group's own counts stand beside those with its children."""
    stat = f"active_file 2\ntotal_inactive_file {cached // 4}\ntotal_active_file {cached - cached // 4}"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}


ROOMY, TIGHT = group(8 * GB, 2 * GB), group(4 * GB, 3 * GB, cached=2 * GB)


@pytest.mark.parametrize(
    ("own", "mount", "groups", "expected_gb"),
    [
        pytest.param("0::/", v2(), {"": {}}, 64, id="no-group"),
        pytest.param("0::/a", v2(), {"a": group("max", GB)}, 64, id="no-limit"),
        pytest.param("0::/a", v2(), {"a": ROOMY}, 6, id="limit"),
        pytest.param("0::/a", v2(), {"a": group(100 * GB, GB)}, 64, id="limit-above-the-machine"),
        pytest.param("0::/a", v2(), {"a": group(8 * GB, 7 * GB, cached=5 * GB)}, 6, id="after-a-download"),
        pytest.param("0::/a", v2(), {"a": group(8 * GB, 9 * GB)}, 0, id="over-the-limit"),
        pytest.param("0::/a/b", v2(), {"a": TIGHT, "a/b": group("max", GB)}, 3, id="limit-of-a-parent"),
        pytest.param("0::/", v2(), {"": ROOMY}, 6, id="container"),
        pytest.param("0::/../x", v2(), {"": ROOMY}, 6, id="outside-its-namespace"),
        pytest.param("0::/docker/x", v2("/docker/x"), {"": ROOMY}, 6, id="only-the-own-group-is-mounted"),
        pytest.param("4:memory:/a/b", v1("memory"),
            {"memory/a": old_group(4 * GB, 3 * GB, cached=2 * GB), "memory/a/b": old_group(UNLIMITED_V1, GB)},
            3, id="version-1"),
        pytest.param("4:memory:/docker/x", v1("memory", "/docker/x"),
            {"memory": old_group(8 * GB, 7 * GB, cached=5 * GB)}, 6, id="version-1-in-a-container"),
    ],
)  # fmt: skip
def test_available_bytes(tmp_path, own, mount, groups, expected_gb):
    free = available_bytes(write(tmp_path, own, mount, groups))
    assert free / GB == pytest.approx(expected_gb, abs=1e-3)


@pytest.mark.parametrize(
    ("own", "mount", "groups", "expected_gb"),
    [
        pytest.param("0::/a", v2(), {"a": group("max", GB)}, 64, id="no-limit"),
        pytest.param("0::/a/b", v2(), {"a": TIGHT, "a/b": group("max", GB)}, 4, id="limit-of-a-parent"),
        pytest.param("0::/a", v2(), {"a": group(500 * GB, GB)}, 64, id="limit-above-the-machine"),
        pytest.param("4:memory:/docker/x", v1("memory", "/docker/x"), {"memory": old_group(8 * GB, GB)}, 8,
            id="version-1"),
    ],
)  # fmt: skip
def test_most_bytes(tmp_path, own, mount, groups, expected_gb):
    most = most_bytes(write(tmp_path, own, mount, groups))
    assert most / GB == pytest.approx(expected_gb, abs=1e-3)


def test_a_machine_without_proc_tells_nothing(tmp_path):
    assert available_bytes(tmp_path) is None
    assert most_bytes(tmp_path) is None


def test_this_machine_has_memory():
    n_most = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 10**7 < available_bytes() <= n_most
    assert most_bytes() <= n_most
