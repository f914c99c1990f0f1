"""A pause: who runs is parked, nobody begins, and afterwards every answer is what it would have been."""

import pytest
from test_engine import Setup, answer

from cobali_ray.core.request.events import End
from cobali_ray.errors import DeadlineExceededError, InternalError

PROMPTS = {"a": "x" * 30, "b": "y" * 11, "c": "z" * 40, "d": "x" * 33, "e": "w" * 3}


@pytest.fixture(params=[False, True], ids=["inline", "overlapped"])
def setup(request):
    return Setup(n_slots=3, chunk=8, min_prefix=4, n_host_cells=500, overlaps=request.param)


def ask_all(s):
    for name, prompt in PROMPTS.items():
        s.submit(name, prompt, max_tokens=12)


@pytest.mark.parametrize("n_ticks", [0, 1, 3, 6, 9, 15])
def test_answers_are_the_same_whenever_it_comes(setup, n_ticks):
    s = setup
    ask_all(s)
    for _ in range(n_ticks):
        s.tick()
    n_running = len(s.engine.slots.running)
    assert s.engine.pause() == n_running
    while s.engine.has_work:
        assert s.tick() is None, "nothing is computed"
    assert not s.engine.slots.running
    n_open = s.engine.scheduler.n_open
    s.submit("late", "v" * 9, max_tokens=12)
    assert not s.engine.has_work, "who comes in a pause waits, too"
    assert s.engine.resume() == n_open + 1
    s.run()
    for name, prompt in {**PROMPTS, "late": "v" * 9}.items():
        assert s.end(name).error is None
        assert s.events.text(name) == answer(prompt, max_tokens=12), name


def test_nothing_is_computed_again_but_the_last_tokens(setup):
    s = setup
    s.submit("a", "x" * 40, max_tokens=12)
    for _ in range(8):
        s.tick()
    n_known = len(s.engine.slots.running[0].tokens)
    s.engine.pause()
    s.tick()
    s.engine.resume()
    assert s.tick().n_prefill <= 2 < n_known


def test_who_ran_goes_before_who_waited(setup):
    s = setup
    ask_all(s)
    for _ in range(3):
        s.tick()
    ran = [one.request_id for one in s.engine.slots.running]
    s.engine.pause()
    s.tick()
    assert [one.request_id for one in s.engine.scheduler.queue][: len(ran)] == ran
    s.engine.resume()
    s.tick()
    assert {one.request_id for one in s.engine.slots.running} == set(ran)


def test_requests_end_in_a_pause_as_ever(setup):
    s = setup
    s.submit("left", "x" * 30, max_tokens=12)
    s.submit("late", "y" * 30, max_tokens=12, timeout_s=5.0)
    s.submit("stays", "z" * 30, max_tokens=12)
    for _ in range(3):
        s.tick()
    s.engine.pause()
    s.tick()
    s.engine.cancel("left")
    s.clock.advance(6.0)
    assert s.engine.patience_s == 0
    s.tick()
    assert isinstance(s.events.events["left"][-1], End)
    assert isinstance(s.end("late").error, DeadlineExceededError)
    s.engine.resume()
    s.run()
    assert s.events.text("stays") == answer("z" * 30, max_tokens=12)


def test_twice_is_once_and_a_failure_does_not_end_it(setup):
    s = setup
    s.submit("a", "x" * 30)
    s.tick()
    s.engine.pause()
    s.engine.pause()
    s.engine.fail_all(InternalError("fire"))
    s.submit("b", "y" * 30)
    assert not s.engine.has_work
    s.engine.resume()
    s.engine.resume()
    s.run()
    assert s.end("b").error is None


def test_a_pause_says_nothing_of_how_fast_a_queue_drains(setup):
    s = setup
    for i in range(12):
        s.submit(f"r{i}", "x" * (i + 3), max_tokens=4)
    while not s.engine.scheduler.drain_rate.rps or not s.engine.scheduler.head_waits:
        s.tick()
    before = s.engine.scheduler.drain_rate.rps
    s.engine.pause()
    s.tick()
    s.clock.advance(3600.0)
    s.engine.resume()
    s.tick()
    assert s.engine.scheduler.drain_rate.rps >= before / 2
