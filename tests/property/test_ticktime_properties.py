"""A tick-time model stays near what it saw, whatever it saw."""

import random

from hypothesis import example, given
from hypothesis import strategies as st

from cobali_ray.core.cost.ticktime import TickShape, TickTimeModel
from cobali_ray.core.request.limits import Grain


@given(st.integers(0, 1 << 32), st.integers(0, 8000), st.sampled_from([2, 16, 64]))
def test_a_full_batch_that_only_grows_does_not_mislead_the_model(seed, context, n_decode):
    # Its terms cannot be told apart and bursts only make ticks longer: weights are cut at 0 again and again.
    model, rng = TickTimeModel(), random.Random(seed)
    for _ in range(150):
        context += n_decode
        shape = TickShape(n_decode, context, ())
        model.learn(shape, 0.011 + rng.expovariate(1 / 0.002))
        assert 0 <= model.predict(shape) <= 0.1


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 1200), st.integers(0, 9000), st.floats(1e-6, 1e6)),
        min_size=1, max_size=60,
    ),
    st.booleans(),
)  # fmt: skip
@example(
    seen=[
        (1, 1, 0, 1e6), (35, 1, 0, 827.0), (2, 1, 0, 1e6), (2, 2, 3977, 1e6), (1, 1, 0, 1e-6),
        (3, 1, 8023, 1e-6), (19, 2, 0, 1e-6), (3, 1, 6626, 0.0134), (2, 551, 0, 2534.0),
    ],
    apart=False,
)  # fmt: skip
def test_whatever_ticks_took_what_is_predicted_is_a_number_of_seconds(seen, apart):
    model = TickTimeModel(Grain(beside=int(apart)))
    model.calibrate([(TickShape(1, 0, ()), 0.01), (TickShape(0, 0, ((0, 8),)), 0.02)])
    for n_decode, n_chunk, start, seconds in seen:
        runs = (n_decode - n_decode // 2, n_decode // 2) if apart and n_decode > 1 else ()
        shape = TickShape(n_decode, 100 * n_decode, ((start, n_chunk),) if n_chunk else (), 0, runs)
        model.learn(shape, seconds)
        assert 0 <= model.predict(shape) < 1e8
    assert 0 <= model.longest_chunk(0, 1.0, most=4000) <= 4000
    model.calibrate([(TickShape(1, 0, ()), 0.01)])
    assert 0 <= model.predict(TickShape(1, 0, ())) < 1e8


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 4000), st.floats(1e-5, 1e-4)), min_size=20))
def test_prefill_predictions_stay_in_the_range_of_what_was_seen(seen):
    model = TickTimeModel()
    for length, start, per_token in seen:
        shape = TickShape(0, 0, ((start, length),))
        model.learn(shape, length * per_token)
        assert 0 <= model.predict(shape) <= 4 * 512 * 1e-4
