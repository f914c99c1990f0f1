"""How compute threads wait: the policy as a table."""

import pytest

from cobali_ray.backend.threads import SPIN_COUNT, apply_wait, choose_wait, default_n_threads

PASSIVE, ACTIVE, SPINS = (
    {"OMP_WAIT_POLICY": "PASSIVE"},
    {"OMP_WAIT_POLICY": "active"},
    {"GOMP_SPINCOUNT": "5"},
)


@pytest.mark.parametrize(
    ("asked", "n_threads", "n_cores", "expected"),
    [
        pytest.param("active", 8, 8, "active", id="asked-to-spin"),
        pytest.param("passive", 1, 8, "passive", id="asked-to-sleep"),
        pytest.param("auto", 4, 8, "brief", id="cores-to-spare"),
        pytest.param("auto", 8, 8, "brief", id="every-core-is-ours"),
        pytest.param("auto", 1, 1, "brief", id="one-thread-waits-for-nobody"),
        pytest.param("auto", 9, 8, "passive", id="more-threads-than-cores"),
    ],
)
def test_choose_wait(asked, n_threads, n_cores, expected):
    assert choose_wait(asked, n_threads=n_threads, n_cores=n_cores) == expected


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
        pytest.param(0, "brief", {"GOMP_SPINCOUNT": str(SPIN_COUNT)}, id="a-core-for-every-thread"),
        pytest.param(1, "passive", {"OMP_WAIT_POLICY": "passive"}, id="a-thread-too-many"),
    ],
)
def test_auto_says_what_it_did(n_more, expected, after):
    environ = {}
    assert apply_wait("auto", n_threads=default_n_threads() + n_more, environ=environ) == expected
    assert environ == after


def test_auto_is_the_same_in_a_child_that_inherits_it():
    environ = {}
    chosen = apply_wait("auto", n_threads=1, environ=environ)
    assert apply_wait("auto", n_threads=1, environ=environ) == chosen
