import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.dispatch.route import BLOCK, LAG_S, Router, load_of, names_of
from cobali_ray.core.messages import Compute, Emitted, Paused, Sampled, Submitted, TickBegun, TickEnded
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.views.stats import LoadView

IDLE = LoadView(ahead=(), n_free=4, slot_s=1.0, token_s=0.001, depth_s=0.0, n_kept=1 << 20)


def text(n, first=0):
    return tuple(range(first, first + n))


def router_of(**views):
    router = Router()
    for engine_id, view in views.items():
        router.published(engine_id, view, 0.0)
    return router


def send(router, request_id, tokens, now_s=0.0, salt="", **options):
    route = router.choose(tokens, salt, now_s, **options)
    router.booked(request_id, route, now_s)
    return route


@pytest.mark.parametrize(
    ("a", "b", "chosen"),
    [
        ({}, {"ahead": ((0, 50),)}, "a"),
        ({"n_free": 0}, {"ahead": ((0, 50), (0, 50))}, "b"),
        ({"n_free": -1}, {"n_free": 0, "ahead": ((0, 50),)}, "b"),
        ({"token_s": 0.002}, {"ahead": ((0, 50),)}, "b"),
        ({"depth_s": 1e-5}, {"token_s": 0.0014}, "b"),
        ({"ahead": ((0, 500),)}, {"ahead": ((0, 60),) * 2}, "a"),
        ({"ahead": ((0, 500),)}, {"ahead": ((0, 60),)}, "b"),
        ({"token_s": 0.0}, {"ahead": ((0, 50),)}, "a"),
        ({"embed_s": 5.0}, {"ahead": ((0, 50),)}, "b"),
        ({"embed_s": 5.0}, {"ahead": ((0, 80), (0, 70))}, "a"),
    ],
    ids=[
        "less-prefill-ahead", "a-slot-is-waited-for", "one-after-another", "a-slow-engine", "depth-costs",
        "longer-prompts-are-passed", "by-as-much-as-they-have",
        "who-cannot-tell-gets-its-chance",
        "texts-take-turns-with-prompts", "so-that-they-cost-no-more-than-the-prompt",
    ],
)  # fmt: skip
def test_the_least_predicted_time_to_first_token_wins(a, b, chosen):
    views = {"a": IDLE._replace(**a), "b": IDLE._replace(**b)}
    for order in ("ab", "ba"):
        router = router_of(**{name: views[name] for name in order})
        assert router.choose(text(100), "", 0.0).engine_id == chosen


@pytest.mark.parametrize(("n_ahead", "chosen"), [(4, "a"), (6, "b")])
def test_an_engine_with_a_handicap_must_save_more_than_that(n_ahead, chosen):
    router = Router({"b": 0.5})
    router.published("a", IDLE._replace(ahead=((0, 100),) * n_ahead), 0.0)
    router.published("b", IDLE, 0.0)
    route = router.choose(text(100), "", 0.0)
    assert route.engine_id == chosen
    assert route.ttft_s == pytest.approx({"a": 0.5, "b": 0.1}[chosen]), "the prediction is the true one"


def test_who_cannot_tell_is_as_fast_as_the_fastest_and_no_faster():
    router = router_of(a=IDLE, b=IDLE._replace(token_s=0.0), c=IDLE._replace(token_s=0.002))
    send(router, "1", text(640), without={"b", "c"})
    router.released("1", 0)
    assert router.choose(text(640), "", 1.0).engine_id == "a"
    assert router.choose(text(640, 5000), "", 1.0, without={"a"}).ttft_s == pytest.approx(0.64)
    router.published("b", IDLE._replace(token_s=0.0, slot_s=0.0, n_free=-1, ahead=((0, 600),) * 3), 1.0)
    b_alone = router.choose(text(640, 5000), "", 1.0, without={"a", "c"})
    assert b_alone.ttft_s == pytest.approx(2 * 1.0 + 3 * 0.6 + 0.64), "what it has to do counts all the same"


def test_what_was_sent_after_a_view_is_computed_from_then_on():
    """A view that says that nothing waits is no reason to take what was sent since for done."""
    router = router_of(a=IDLE._replace(ahead=((0, 300),)))
    send(router, "1", text(500), now_s=1.0)
    send(router, "2", text(200, 5000), now_s=1.1)
    assert router.choose(text(1000, 9000), "", 1.1).ttft_s == pytest.approx(0.4 + 0.2 + 1.0)
    assert router.choose(text(1000, 9000), "", 1.5).ttft_s == pytest.approx(0.2 + 1.0)
    assert router.choose(text(1000, 9000), "", 3.0).ttft_s == pytest.approx(1.0)


def test_equal_engines_take_turns():
    router = router_of(a=IDLE, b=IDLE, c=IDLE)
    chosen = []
    for i in range(6):
        chosen.append(send(router, f"{i}", text(10, 1000 * i), now_s=i + 1.0).engine_id)
        router.released(f"{i}", 0)
    assert sorted(chosen[:3]) == ["a", "b", "c"]
    assert chosen[3:] == chosen[:3]


def test_an_engine_that_is_paused_gets_requests_only_where_all_are():
    paused, busy = IDLE._replace(paused=True), IDLE._replace(ahead=((0, 9000),))
    assert send(router_of(a=paused, b=busy), "r", text(10, 1)).engine_id == "b"
    assert send(router_of(a=paused, b=paused), "r", text(10, 1)).engine_id in {"a", "b"}


def test_a_conversation_stays_until_the_queue_costs_more_than_its_prefill():
    router = router_of(a=IDLE, b=IDLE)
    first = send(router, "1", text(1000), now_s=1.0)
    router.released("1", 0)
    home, other = first.engine_id, "b" if first.engine_id == "a" else "a"
    again = router.choose(text(1100), "", 2.0)
    assert (again.engine_id, again.n_held) == (home, 1000 // BLOCK * BLOCK)
    assert again.ttft_s == pytest.approx(0.001 * (1100 - again.n_held))
    router.published(home, IDLE._replace(ahead=((0, 100),) * 9), 2.0)
    assert router.choose(text(1100), "", 2.0).engine_id == home, "0.9 s of queue, 1.1 s of prefill"
    router.published(home, IDLE._replace(ahead=((0, 100),) * 11), 2.0)
    assert router.choose(text(1100), "", 2.0).engine_id == other


def test_nothing_is_shared_between_salts_and_nobody_shares_without_one():
    router = router_of(a=IDLE)
    send(router, "1", text(1000), salt="mine")
    assert router.choose(text(1000), "mine", 0.0).n_held
    assert not router.choose(text(1000), "yours", 0.0).n_held
    send(router, "2", text(1000, 9000), salt=None)
    assert not router.choose(text(1000), None, 0.0).n_held
    assert not router.choose(text(1000, 9000), "", 0.0).n_held
    assert not set(names_of(text(1000), "mine")) & set(names_of(text(1000), "yours"))


def test_what_is_computed_under_an_activated_adapter_is_not_expected_to_be_shared():
    router = router_of(a=IDLE)
    tokens = text(4 * BLOCK)
    common = tokens[: 2 * BLOCK + 2]
    send(router, "1", tokens, common=common)
    assert router.choose(tokens, "", 0.0).n_held == 2 * BLOCK
    send(router, "2", tokens)
    assert router.choose(tokens, "", 0.0, common=common).n_held == 2 * BLOCK


def test_what_was_booked_since_the_view_counts_and_then_the_view_does():
    router = router_of(a=IDLE, b=IDLE._replace(ahead=((0, 150),)))
    assert send(router, "1", text(200)).engine_id == "a"
    assert router.choose(text(300, 5000), "", 0.0).engine_id == "b", "0.2 s are booked at a"
    router.published("a", IDLE, LAG_S / 2)
    assert router.choose(text(300, 5000), "", LAG_S / 2).engine_id == "b", "too soon to be in that view"
    router.published("a", IDLE, 2 * LAG_S)
    assert router.choose(text(300, 5000), "", 2 * LAG_S).engine_id == "a"


def test_bookings_take_slots():
    router = router_of(a=IDLE._replace(n_free=1), b=IDLE._replace(ahead=((0, 10),)))
    assert send(router, "1", text(20)).engine_id == "a"
    assert send(router, "2", text(20, 900)).engine_id == "b", "a has no free slot left"
    router.released("1")
    assert router.choose(text(20, 1800), "", 0.0).engine_id == "a"


def test_who_refused_is_passed_over_and_nobody_is_left_at_last():
    router = router_of(a=IDLE, b=IDLE._replace(ahead=((0, 10),)))
    assert router.choose(text(50), "", 0.0, without={"a"}).engine_id == "b"
    assert router.choose(text(50), "", 0.0, without={"a", "b"}) is None
    assert Router().choose(text(50), "", 0.0) is None


def test_a_request_is_booked_at_one_engine_at_a_time():
    router = router_of(a=IDLE, b=IDLE)
    first = send(router, "1", text(500))
    send(router, "1", text(500), without={first.engine_id})  # the first refused
    assert router.choose(text(20, 900), "", 0.0).engine_id == first.engine_id, "nothing is booked there"
    router.released("1")
    assert not router._bookings
    assert not any(engine.since for engine in router._engines.values())


def test_as_many_blocks_as_an_engine_gave_up_are_forgotten_the_oldest_first():
    router = router_of(a=IDLE)
    for i, n_blocks in enumerate((20, 10, 10)):
        send(router, f"{i}", text(n_blocks * BLOCK + 1, 10_000 * i), now_s=float(i))
        router.released(f"{i}", 0)
    send(router, "again", text(10 * BLOCK + 1, 10_000), now_s=4.0)
    router.released("again", BLOCK)  # ten blocks of the second prompt had been there, as far as was known
    held = [router.choose(text(20 * BLOCK + 1, 10_000 * i), "", 5.0).n_held // BLOCK for i in range(3)]
    assert held == [11, 10, 10], "nine of the oldest are gone; the second was computed there just now"


def test_a_tail_that_was_given_up_forgets_nothing():
    router = router_of(a=IDLE)
    for i in range(2):
        send(router, f"{i}", text(640, 10_000 * i), now_s=1.0)
        router.released(f"{i}", 0)
    send(router, "again", text(640), now_s=2.0)
    router.released("again", 9 * BLOCK - 10)
    assert router.choose(text(640, 10_000), "", 3.0).n_held == 9 * BLOCK


def test_an_engine_that_left_holds_nothing_when_it_comes_back():
    router = router_of(a=IDLE)
    send(router, "1", text(640))
    router.left("a")
    assert router.choose(text(640), "", 1.0) is None
    router.released("1", 0)
    router.published("a", IDLE, 2.0)
    assert not router.choose(text(640), "", 2.0).n_held


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), min_size=1, max_size=40))
def test_the_history_is_bounded_and_a_block_never_outlives_the_one_before_it(asked):
    n_kept = 10 * BLOCK
    router = router_of(a=IDLE._replace(n_kept=n_kept))
    for at, (first, n_blocks) in enumerate(asked):
        prompt = (*text(3 * BLOCK), *text(n_blocks * BLOCK + 1, 1000 * first))
        send(router, f"{at}", prompt, now_s=float(at))
        router.released(f"{at}")
        held = router._engines["a"].held
        assert len(held) <= n_kept // BLOCK
        for other in range(6):
            names = names_of((*text(3 * BLOCK), *text(12 * BLOCK, 1000 * other)), "")
            n = router._engines["a"].n_blocks(names)
            assert [name in held for name in names] == [True] * n + [False] * (len(names) - n)


LIMITS = EngineLimits(
    n_slots=2, n_ctx_slot=4096, n_cells=8192, token_budget=258, prefill_chunk=256, prefill_order="shortest"
)


def request(request_id, prompt):
    return Request(request_id=request_id, prompt=prompt, max_tokens=4)


def tick(scheduler, now_s, seconds):
    plan = next(one.plan for one in scheduler.handle(TickBegun(now_s)) if isinstance(one, Compute))
    scheduler.handle(Sampled([7] * len(plan.rows), {}, now_s + seconds))
    if plan.rows:
        scheduler.handle(Emitted((), now_s + seconds))
    scheduler.handle(TickEnded(now_s + seconds))


def test_an_engine_publishes_what_it_has_to_do():
    scheduler = Scheduler(LIMITS, pacer=Pacer(None))
    view = load_of(scheduler)
    assert (view.ahead, view.n_free, view.slot_s, view.token_s) == ([], 2, 0.0, 0.0)
    now_s = 0.0
    for i in range(8):  # it learns that a prompt token takes 0.1 ms beside 2 ms for each tick
        scheduler.handle(
            Submitted(Request(request_id=f"{i}", prompt=text(256, 300 * i), max_tokens=4), now_s)
        )
        for n in (256, 1, 1, 1):
            seconds = 0.002 + 0.0001 * n
            tick(scheduler, now_s, seconds)
            now_s += seconds
    for i in range(3):
        scheduler.handle(Submitted(request(f"x{i}", text(1000, 5000)), now_s))
    tick(scheduler, now_s, 0.028)
    view = load_of(scheduler)
    assert view.n_free == -1, "one request waits for a slot"
    assert view.ahead == [(256, 1000), (2, 1000), (0, 1000)]
    assert 0.0001 < view.token_s < 0.00014
    assert view.slot_s == pytest.approx(0.031 / 2, rel=0.1), "a stay of 31 ms in each of two slots"
    assert view.n_kept == 8192
    assert not view.paused
    scheduler.handle(Paused(now_s))
    assert load_of(scheduler).paused
