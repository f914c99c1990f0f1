"""How compute threads wait: the policy as a table."""

import pytest

from cobali_ray.backend.threads import apply_wait, choose_wait, default_n_threads

PASSIVE, ACTIVE, SPINS = (
    {"OMP_WAIT_POLICY": "PASSIVE"},
    {"OMP_WAIT_POLICY": "active"},
    {"GOMP_SPINCOUNT": "5"},
)


@pytest.mark.parametrize(
    ("asked", "n_threads", "n_cores", "load", "expected"),
    [
        pytest.param("active", 8, 8, 99.0, "active", id="asked-to-spin"),
        pytest.param("passive", 1, 8, 0.0, "passive", id="asked-to-sleep"),
        pytest.param("auto", 4, 8, 0.0, "active", id="cores-to-spare"),
        pytest.param("auto", 8, 8, 0.0, "passive", id="every-core-is-ours"),
        pytest.param("auto", 1, 1, 0.0, "active", id="one-thread-waits-for-nobody"),
        pytest.param("auto", 4, 8, 2.0, "active", id="load-just-bearable"),
        pytest.param("auto", 4, 8, 2.1, "passive", id="load-too-high"),
        pytest.param("auto", 1, 1, 0.3, "passive", id="one-core-and-busy"),
    ],
)
def test_choose_wait(asked, n_threads, n_cores, load, expected):
    assert choose_wait(asked, n_threads=n_threads, n_cores=n_cores, load=load) == expected


@pytest.mark.parametrize(
    ("asked", "before", "expected", "after"),
    [
        pytest.param("passive", {}, "passive", {"OMP_WAIT_POLICY": "passive"}, id="sleep"),
        pytest.param("active", {}, "active", {}, id="spin-is-the-library-default"),
        pytest.param("active", {"OMP_WAIT_POLICY": "passive"}, "active", {}, id="setting-beats-environment"),
        pytest.param("auto", PASSIVE, "passive", PASSIVE, id="exported-sleep"),
        pytest.param("auto", ACTIVE, "active", ACTIVE, id="exported-spin"),
        pytest.param("auto", SPINS, "active", SPINS, id="exported-spin-count"),
    ],
)
def test_apply_wait(asked, before, expected, after):
    environ = dict(before)
    assert apply_wait(asked, n_threads=2, environ=environ) == expected
    assert environ == after


def test_auto_says_what_it_did():
    environ = {}
    chosen = apply_wait("auto", n_threads=default_n_threads() + 1, environ=environ)
    assert chosen == "passive", "threads that take every core must sleep"
    assert environ == {"OMP_WAIT_POLICY": "passive"}
