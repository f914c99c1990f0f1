"""A tick-time model stays near what it saw, whatever it saw."""

import random

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.ticktime import Shape, TickTimeModel


@given(st.integers(0, 1 << 32), st.integers(0, 8000), st.sampled_from([2, 16, 64]))
def test_a_full_batch_that_only_grows_does_not_mislead_the_model(seed, context, n_decode):
    # Its terms cannot be told apart and bursts only make ticks longer: weights are cut at 0 again and again.
    model, rng = TickTimeModel(), random.Random(seed)
    for _ in range(150):
        context += n_decode
        shape = Shape(n_decode, context, ())
        model.learn(shape, 0.011 + rng.expovariate(1 / 0.002))
        assert 0 <= model.predict(shape) <= 0.1


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 4000), st.floats(1e-5, 1e-4)), min_size=20))
def test_prefill_predictions_stay_in_the_range_of_what_was_seen(seen):
    model = TickTimeModel()
    for length, start, per_token in seen:
        shape = Shape(0, 0, ((start, length),))
        model.learn(shape, length * per_token)
        assert 0 <= model.predict(shape) <= 4 * 512 * 1e-4
