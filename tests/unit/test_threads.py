"""How many compute threads there are and how they wait: the policies as tables."""

import os

import pytest
from machine_files import v1, v2, write

from cobali_ray.backend.threads import SPIN_COUNT, apply_wait, default_n_threads, n_at_once

PASSIVE, ACTIVE, SPINS = (
    {"OMP_WAIT_POLICY": "PASSIVE"},
    {"OMP_WAIT_POLICY": "active"},
    {"GOMP_SPINCOUNT": "5"},
)

SMT = {cpu: f"{cpu % 32},{cpu % 32 + 32}" for cpu in range(64)}
"""64 CPUs on 32 cores, numbered as servers do: the second of each core after all first ones."""


def quota(text):
    return {"cpu.max": text}


def old_quota(us):
    return {"cpu.cfs_quota_us": us, "cpu.cfs_period_us": 100_000}


@pytest.mark.parametrize(
    ("own", "mount", "groups", "cpus", "n_threads", "n_cpus"),
    [
        pytest.param("0::/a", v2(), {"a": quota("max 100000")}, range(64), 32, 64, id="the-whole-machine"),
        pytest.param("0::/a", v2(), {"a": quota("200000 100000")}, range(64), 2, 2, id="quota"),
        pytest.param("0::/a", v2(), {"a": quota("250000 100000")}, range(64), 2, 2, id="half-a-cpu-over"),
        pytest.param("0::/a", v2(), {"a": quota("50000 100000")}, range(64), 1, 1, id="less-than-one-cpu"),
        pytest.param("0::/a", v2(), {"a": quota("4800000 100000")}, range(64), 32, 48, id="quota-over-cores"),
        pytest.param(
            "0::/a/b", v2(), {"a": quota("400000 100000"), "a/b": quota("max 100000")}, range(64), 4, 4,
            id="quota-of-a-parent",
        ),
        pytest.param("0::/", v2(), {}, [0, 1, 32, 33], 2, 4, id="affinity-to-two-cores"),
        pytest.param("0::/", v2(), {}, [0, 1, 2, 3], 4, 4, id="affinity-to-one-cpu-of-each-core"),
        pytest.param("0::/", v2(), {}, [80, 81], 2, 2, id="cores-unknown"),
        pytest.param(
            "5:cpu,cpuacct:/a/b", v1("cpu,cpuacct"),
            {"cpu,cpuacct/a": old_quota(300_000), "cpu,cpuacct/a/b": old_quota(-1)}, range(64), 3, 3,
            id="version-1",
        ),
    ],
)  # fmt: skip
def test_threads_are_cores_within_affinity_and_quota(tmp_path, own, mount, groups, cpus, n_threads, n_cpus):
    write(tmp_path, own, mount, groups)
    for cpu, siblings in SMT.items():
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert default_n_threads(tmp_path, set(cpus)) == n_threads
    assert n_at_once(tmp_path, set(cpus)) == n_cpus


def test_this_machine_has_threads():
    assert 1 <= default_n_threads() <= n_at_once() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("asked", "before", "expected", "after"),
    [
        pytest.param("passive", {}, "passive", {"OMP_WAIT_POLICY": "passive"}, id="sleep"),
        pytest.param("active", {}, "active", {}, id="spin-is-the-library-default"),
        pytest.param("active", {"OMP_WAIT_POLICY": "passive"}, "active", {}, id="setting-beats-environment"),
        pytest.param("auto", PASSIVE, "passive", PASSIVE, id="exported-sleep"),
        pytest.param("auto", ACTIVE, "active", ACTIVE, id="exported-spin"),
        pytest.param("auto", SPINS, "brief", SPINS, id="exported-spin-count"),
        pytest.param("active", SPINS, "active", {}, id="setting-beats-spin-count"),
        pytest.param(
            "passive", SPINS, "passive", {"OMP_WAIT_POLICY": "passive"}, id="sleep-beats-spin-count"
        ),
    ],
)
def test_apply_wait(asked, before, expected, after):
    environ = dict(before)
    assert apply_wait(asked, n_threads=2, environ=environ) == expected
    assert environ == after


@pytest.mark.parametrize(
    ("n_more", "expected", "after"),
    [
        pytest.param(0, "brief", {"GOMP_SPINCOUNT": str(SPIN_COUNT)}, id="a-cpu-for-every-thread"),
        pytest.param(1, "passive", {"OMP_WAIT_POLICY": "passive"}, id="a-thread-too-many"),
    ],
)
def test_auto_says_what_it_did(n_more, expected, after):
    environ = {}
    assert apply_wait("auto", n_threads=n_at_once() + n_more, environ=environ) == expected
    assert environ == after


def test_auto_is_the_same_in_a_child_that_inherits_it():
    environ = {}
    chosen = apply_wait("auto", n_threads=1, environ=environ)
    assert apply_wait("auto", n_threads=1, environ=environ) == chosen
