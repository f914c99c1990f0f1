"""The kernels on a CUDA device against the numpy twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cobali_ray.backend.select import (
    Column,
    busy_requests,
    choose_select,
    cuda_select,
    empty_requests,
    numpy_select,
)
from cobali_ray.backend.select_cuda import open_kernels
from cobali_ray.errors import ConfigError

pytestmark = pytest.mark.gpu
EDGES = [0, 1, 31, 32, 33, 1023, 1024, 1025, 4096, 10_000]


@pytest.fixture(scope="module")
def device():
    try:
        return cuda_select(open_kernels())
    except ConfigError as error:
        pytest.skip(str(error))


@st.composite
def tables(draw):
    n = draw(st.integers(0, 5000) | st.sampled_from(EDGES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = empty_requests(n)
    for column, most in ((Column.RUNNING, 2), (Column.DECODING, 2), (Column.N_PENDING, 3)):
        table[column] = rng.integers(0, most, n)
    table[Column.TOKEN :] = rng.integers(0, 2**31 - 1, (3, n))
    return table


def columns(chosen):
    return [column.tolist() for column in (chosen.index, chosen.token, chosen.position, chosen.slot_id)]


@settings(max_examples=300)
@given(tables(), st.integers(0, 5000))
def test_kernels_answer_like_the_twin(device, table, budget):
    assert columns(device(table, budget)) == columns(numpy_select(table, budget))


def test_answers_stay_when_the_next_one_comes(device):
    first = device(busy_requests(64), 64)
    before = columns(first)
    device(busy_requests(64), 3)
    assert columns(first) == before


def test_cuda_is_what_was_asked_for(device):
    assert choose_select("cuda")([None] * 4, 4) == []
