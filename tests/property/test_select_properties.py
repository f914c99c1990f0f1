"""The numpy twin against plain Python, and the kernels' own source, run on the CPU, against the twin."""

import shutil

import numpy as np
import pytest
from emulated_cuda import EmulatedKernels, StuckError
from hypothesis import example, given
from hypothesis import strategies as st

from cobali_ray.backend.select import Column, busy_requests, cuda_select, empty_requests, numpy_select
from cobali_ray.backend.select_cuda import SOURCE

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="g++ compiles the kernels for the CPU"
)
EDGES = [0, 1, 31, 32, 33, 1023, 1024, 1025, 4096]


@st.composite
def tables(draw, most=300):
    """Tables with all mixtures of idle, prefilling, waiting and decoding requests."""
    n = draw(st.integers(0, most) | st.sampled_from([n for n in EDGES if n <= most]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.0, 0.02, 0.5, 0.9, 1.0]))
    table = empty_requests(n)
    table[Column.RUNNING] = rng.random(n) < share
    table[Column.DECODING] = rng.random(n) < draw(st.sampled_from([0.5, 1.0]))
    table[Column.N_PENDING] = rng.integers(0, 3, n)
    table[Column.TOKEN :] = rng.integers(0, 2**31 - 1, (3, n))
    return table


def in_python(table, budget):
    rows = [
        (i, token, position, slot_id)
        for i, (running, decoding, pending, token, position, slot_id) in enumerate(table.T.tolist())
        if running and decoding and pending > 0
    ]
    return rows[:budget]


def rows(chosen):
    return list(zip(*(column.tolist() for column in chosen_columns(chosen)), strict=True))


def chosen_columns(chosen):
    columns = (chosen.index, chosen.token, chosen.position, chosen.slot_id)
    assert all(column.dtype == np.int32 for column in columns)
    return columns


@given(tables(), st.integers(0, 310))
def test_numpy_twin_answers_like_the_loop(table, budget):
    assert rows(numpy_select(table, budget)) == in_python(table, budget)


def test_negative_budget_chooses_nobody():
    assert len(numpy_select(busy_requests(4), -1)) == 0


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return EmulatedKernels(tmp_path_factory.mktemp("kernels"))


@needs_compiler
@given(
    table=tables(most=4096),
    budget=st.integers(0, 70) | st.sampled_from([1024, 5000]),
    n_threads=st.sampled_from([32, 64, 256, 1024]),
    seed=st.integers(0, 2**32 - 1),
)
@example(table=busy_requests(4096), budget=4096, n_threads=1024, seed=1)
@example(table=busy_requests(4096), budget=1025, n_threads=1024, seed=2)
@example(table=busy_requests(33), budget=33, n_threads=32, seed=3)
def test_kernels_answer_like_the_twin(kernels, table, budget, n_threads, seed):
    kernels.n_threads, kernels.seed = n_threads, seed
    assert rows(cuda_select(kernels)(table, budget)) == rows(numpy_select(table, budget))


def goes_wrong(kernels, n_seeds=20):
    """Say whether any order of threads gives a wrong answer or none."""
    table = busy_requests(600)
    table[Column.RUNNING, ::3] = 0
    expected = rows(numpy_select(table, 350))
    for seed in range(n_seeds):
        kernels.n_threads, kernels.seed = 256, seed
        try:
            if rows(cuda_select(kernels)(table, 350)) != expected:
                return True
        except StuckError:
            return True
    return False


BROKEN = {
    "no-barrier-after-the-votes": ("= __popc(votes);\n        __syncthreads();", "= __popc(votes);"),
    "no-barrier-after-the-sums": ("        }\n        __syncthreads();", "        }"),
    "inclusive-sum": ("sum - own", "sum"),
    "counts-itself": ("(1u << lane) - 1u", "(2u << lane) - 1u"),
    "counts-past-the-budget": ("n_found < budget ? n_found : budget", "n_found"),
    "adds-warps-that-are-not-there": ("lane < n_warps ? warp_base[lane] : 0", "warp_base[lane]"),
}


@needs_compiler
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if i else ()) for i, name in enumerate(BROKEN)]
)
def test_emulation_notices_a_broken_kernel(tmp_path, name):
    good, bad = BROKEN[name]
    assert SOURCE.count(good) == 1
    assert goes_wrong(EmulatedKernels(tmp_path, SOURCE.replace(good, bad)))
