"""What is shown of a cache: what runs, what idle slots hold, and bytes by what a token and a state take."""

from test_fair import Setup, ask

from cobali_ray.core.views.cache import view_of


def test_cells_are_running_idle_or_free():
    s = Setup(n_slots=3, min_prefix=1)
    s.submit(ask("runs", n_prompt=20), ask("ends", n_prompt=8, max_tokens=3))
    s.tick(8)
    view, slots = view_of(s.scheduler), s.scheduler.slots
    (running,) = slots.running
    assert "ends" in s.ends
    n_idle = sum(slots.held(i).n_tokens for i, one in enumerate(slots.by_slot) if one is None)
    assert n_idle >= 8
    assert view.kv_cells == {
        "n": 768, "n_running": running.n_computed, "n_idle": n_idle,
        "n_free": 768 - running.n_computed - n_idle,
    }  # fmt: skip


def test_host_memory_is_counted_with_what_a_token_takes():
    s = Setup(n_slots=1, min_prefix=1, n_host_cells=500, cell_bytes=100, host_block=4)
    for name in ("a", "zz"):
        s.submit(ask(name, n_prompt=40, max_tokens=3))
        s.tick(8)
    host = view_of(s.scheduler).host
    assert host["n_tokens"] > 0
    assert (host["bytes"], host["limit_bytes"]) == (100 * host["n_tokens"], 50_000)


def test_states_are_counted_with_what_each_takes():
    s = Setup(n_slots=1, min_prefix=1, state_bytes=1000, n_states=7, state_step=2, host_block=4)
    s.submit(ask("a", n_prompt=40, max_tokens=3))
    s.tick(8)
    states = view_of(s.scheduler).states
    assert states["n"] > 0
    assert (states["bytes"], states["limit_bytes"]) == (1000 * states["n"], 7000)
