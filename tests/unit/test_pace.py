"""The pacer on a simulated machine whose tick times are known."""

import random
from dataclasses import dataclass, replace

import pytest

from cobali_ray.core.cost.ticktime import TickShape, TickTimeModel
from cobali_ray.core.plan.pace import MAX_GAP_S, MIN_CHUNK, PATIENCE_S, STRETCH, Pacer, best_prefill_s
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import EngineLimits, Grain
from tests.views import View


@dataclass(frozen=True)
class Machine:
    """True costs in seconds; `noise` is relative."""

    base: float = 0.004
    per_row: float = 0.0003
    per_context: float = 2e-7
    mixed: float = 0.001
    alone: float = 0.004
    per_token: float = 8e-5
    per_depth: float = 1e-8
    noise: float = 0.0

    def seconds(self, shape, rng):
        t = 0.0
        if shape.n_decode:
            t += self.base + self.per_row * shape.n_decode + self.per_context * shape.context
        if shape.chunks:
            t += self.mixed if shape.n_decode else self.alone
            t += sum(n * (self.per_token + self.per_depth * (start + n / 2)) for start, n in shape.chunks)
        return t * (1 + self.noise * abs(rng.gauss(0, 1)))


def planned(pacer, slots, limits):
    """Begin a tick; return all its spans in slot order."""
    streams = [s for s in slots if s.decoding]
    prompts = [s for s in slots if not s.decoding]
    prefill = pacer.plan(streams, prompts, limits)
    assert pacer.plan(streams, prompts, limits) == prefill, "to ask changes nothing"
    pacer.begin(prefill)
    return sorted([*(Span(s.slot_id, s.n_computed, 1, True) for s in streams), *prefill.chunks])


LIMITS = EngineLimits(
    n_slots=16, n_ctx_slot=20_000, n_cells=320_000, token_budget=1040, prefill_chunk=1024,
    prefill_order="shortest",
)  # fmt: skip


GRAIN = Grain(step=128, least=64, beside=1)


class Tiled(Machine):
    """Attention in tiles, and one token after another below 64."""

    def seconds(self, shape, rng):
        mixed = shape.n_decode > 0
        extra = sum(
            ((GRAIN.padded(n, mixed=mixed) or 3 * n) - n) * 1e-7 * (start + n / 2)
            for start, n in shape.chunks
        )
        own = replace(self, per_depth=1e-7)
        return Machine.seconds(own, shape, rng) + extra


def simulate(pacer, machine, *, limits=LIMITS, n_streams=15, n_prompt=8000, n_prompts=6, seed=0):
    """Run streams beside long prompts; return gaps beside prefill, errors, tokens and seconds."""
    rng = random.Random(seed)
    streams = [View(i, 100 + 10 * i, 1, decoding=True) for i in range(n_streams)]
    gaps, errors, n_prefilled, spent, since = [], [], 0, 0.0, 0.0
    beside = False

    def tick(slots):
        nonlocal spent, since, n_prefilled, beside
        plan = planned(pacer, slots, limits)
        by_slot = {s.slot_id: s for s in slots}
        decoding = [p for p in plan if by_slot[p.slot_id].decoding]
        chunks = tuple((p.start, p.length) for p in plan if not by_slot[p.slot_id].decoding)
        shape = TickShape(len(decoding), sum(p.start for p in decoding), chunks)
        seconds = machine.seconds(shape, rng)
        predicted = pacer.learn(shape, seconds)
        if predicted:
            errors.append(abs(predicted - seconds) / seconds)
        since += seconds
        beside |= bool(chunks)
        if decoding:
            if beside:
                gaps.append(since)
            since, beside = 0.0, False
        for span in plan:
            view = by_slot[span.slot_id]
            view.n_computed += span.length
            if not view.decoding:
                view.n_pending -= span.length
        spent += seconds if chunks else 0.0
        n_prefilled += sum(n for _, n in chunks)
        return seconds

    for _ in range(40):
        tick(streams)
    for _ in range(n_prompts):
        prompt = View(15, 0, n_prompt)
        while prompt.n_pending:
            tick([*streams, prompt])
        for _ in range(10):
            tick(streams)
    return sorted(gaps), errors, n_prefilled, spent


def p99(values):
    return sorted(values)[int(0.99 * len(values))]


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_gaps_stay_within_the_target(factor, noise):
    machine = Machine(noise=noise)
    decode_s = machine.seconds(TickShape(15, 15 * 2000, ()), random.Random(0))
    pacer = Pacer(factor * decode_s)
    gaps, errors, _, _ = simulate(pacer, machine)
    assert p99(gaps) <= 1.1 * factor * decode_s
    assert sorted(errors)[len(errors) // 2] <= 0.10


def test_whole_steps_are_taken_where_they_fit():
    limits = replace(LIMITS, grain=GRAIN)
    target_s = 0.06
    gaps, errors, n_tokens, seconds = simulate(
        Pacer(target_s, GRAIN), Tiled(), limits=limits, n_prompt=4000, n_prompts=12
    )
    assert p99(gaps) <= 1.1 * target_s
    assert sorted(errors)[len(errors) // 2] <= 0.10
    best = 0.0
    for chunk in (16, 32, 63, 129, 257, 385, 513):
        shapes = [TickShape(15, 15 * 800, ((start, chunk),)) for start in range(0, 4000, chunk)]
        times = [Tiled().seconds(shape, random.Random(0)) for shape in shapes]
        if p99(times) <= 1.1 * target_s:
            best = max(best, 4000 / sum(times))
    assert n_tokens / seconds >= 0.95 * best


@pytest.mark.parametrize("n_streams", [3, 15])
def test_auto_is_made_for_a_chunk_that_there_is_and_takes_it(n_streams):
    lengths = []

    class Recorded(Pacer):
        def learn(self, shape, seconds):
            lengths.extend(n for _, n in shape.chunks)
            return super().learn(shape, seconds)

    machine = Tiled(base=0.02, per_row=0.004, per_token=0.002)
    simulate(
        Recorded("auto", GRAIN), machine, limits=replace(LIMITS, grain=GRAIN), n_streams=n_streams,
        n_prompt=4000,
    )  # fmt: skip
    assert sum(n for n in lengths if n > GRAIN.step) >= 0.9 * sum(lengths), "one step and a token, not less"


@pytest.mark.parametrize(
    ("left", "counted", "padded", "fit"),
    [(64, 63, 0, 0), (65, 64, 128, 65), (129, 128, 128, 129), (200, 199, 256, 129)],
)
def test_grain_counts_from_the_tokens_beside_decoding(left, counted, padded, fit):
    assert GRAIN.counted(left, mixed=True) == counted
    assert GRAIN.padded(left, mixed=True) == padded
    assert GRAIN.fit(left, mixed=True) == fit
    assert GRAIN.fit(128, mixed=False) == 128
    assert [Grain().fit(n, mixed=True) for n in (1, 77)] == [1, 77]


def test_a_prompts_next_piece_has_no_company():
    pacer = Pacer(1.0, GRAIN)
    for _ in range(12):
        pacer.learn(TickShape(15, 1000, ()), 0.01)
    slots = [View(0, 50, 1, decoding=True), View(1, 300, 4000), View(2, 0, 60), View(3, 0, 40)]
    limits = replace(LIMITS, grain=GRAIN)
    assert [s.slot_id for s in planned(pacer, slots, limits)] == [0, 2, 3]
    assert [s.slot_id for s in planned(pacer, slots[:2], limits)] == [0, 1]


def test_a_target_just_above_the_decode_tick_still_moves_prompts():
    plan = planned(known(0.1, target=0.056), beside(1, 400), LIMITS)
    assert [p.length for p in plan] == [1, MIN_CHUNK]


def known(decode_s, target="auto"):
    """A pacer that knows what 10 streams take, and that a prompt token takes a hundredth of it."""

    def measured(n_decode, chunk):
        seconds = decode_s * (0.5 + 0.05 * n_decode + 0.01 * chunk)
        return TickShape(n_decode, 0, ((0, chunk),) if chunk else ()), seconds

    pacer = Pacer(target)
    pacer.model.calibrate(
        [measured(n, 0) for n in (1, 2, 4, 10, 16)] + [measured(0, n) for n in (8, 32, 64, 256, 512)]
    )
    return pacer


def beside(n_streams, *pending):
    prompts = [View(n_streams + i, 0, n) for i, n in enumerate(pending)]
    return [View(i, 10, 1, decoding=True) for i in range(n_streams)] + prompts


KNEE = {  # seconds that a chunk of so many tokens adds: as on a CPU, and nearly nothing up to a knee
    "cpu": lambda n: 0.016 + 0.0036 * n,
    "card": lambda n: 0.0005 + 0.0001 * max(n - 64, 0),
}


@pytest.mark.parametrize("device", list(KNEE))
@pytest.mark.parametrize("slower", [0.01, 1.0])
def test_auto_minimises_what_its_objective_says(device, slower):
    decode_s = 0.06 * slower

    def added_s(n):
        return slower * KNEE[device](n)

    def cost(n, n_streams, n_prompts):
        chunk_s = added_s(n)
        gap_s = decode_s + chunk_s
        return (n_prompts * gap_s + n_streams * (chunk_s + gap_s**2 / (2 * PATIENCE_S))) / n

    alone_s = min((decode_s / 4 + added_s(n)) / n for n in (128, 256, 512))
    for n_streams, n_prompts in ((15, 1), (8, 1), (4, 2), (10, 5)):
        allowed = [
            n for n in range(4, 3073) if decode_s + added_s(n) <= min(MAX_GAP_S, STRETCH * alone_s * n)
        ]
        chosen_s = best_prefill_s(decode_s, n_streams, n_prompts, added_s, alone_s)
        chosen = max(n for n in range(4, 3073) if added_s(n) <= chosen_s + 1e-12)
        best = min(cost(n, n_streams, n_prompts) for n in allowed)
        assert cost(chosen, n_streams, n_prompts) <= 1.05 * best
        assert chosen in allowed


def test_pieces_are_not_smaller_than_what_computes_as_fast():
    def added_s(n):  # a token of a chunk of 64 takes a third of what one of 8 takes
        return 0.1 + 0.001 * n

    assert best_prefill_s(0.1, 15, 1, added_s, 0.0012) >= added_s(64)


def test_auto_cuts_a_prompt_beside_many_streams_and_not_beside_few():
    pacer = known(0.1)
    many = sum(span.length for span in planned(pacer, beside(15, 5000), LIMITS)) - 15
    assert pacer.target_s == pytest.approx(0.125 + 0.001 * many, rel=0.05), "1 ms a token"
    few = sum(span.length for span in planned(pacer, beside(1, 5000), LIMITS)) - 1
    assert few > 1.25 * many


def test_a_prompt_beside_streams_takes_half_as_long_again_as_alone_at_most():
    pacer = known(0.1)
    n_left, took_s = 4096, 0.0
    while n_left:
        chunk = planned(pacer, beside(15, n_left), LIMITS)[-1].length
        took_s += 0.125 + 0.001 * chunk
        n_left -= chunk
    alone_s = 8 * (0.05 + 0.512)
    assert took_s <= 1.02 * STRETCH * alone_s


def test_auto_does_not_cut_what_little_would_be_left():
    pacer = known(0.1)
    most = planned(pacer, beside(15, 5000), LIMITS)[-1].length
    assert planned(pacer, beside(15, int(1.8 * most)), LIMITS)[-1].length == int(1.8 * most)
    assert planned(pacer, beside(15, int(2.2 * most)), LIMITS)[-1].length == most


def test_a_target_that_was_asked_for_holds_in_bursts_too():
    pacer = known(0.04, target=0.05)
    slots = [View(0, 70, 1, decoding=True), *(View(1 + i, 0, 600) for i in range(8))]
    assert sum(span.length for span in planned(pacer, slots, LIMITS)) <= 1 + 64


def test_a_target_that_decoding_alone_exceeds_is_told_and_starves_nobody():
    pacer = known(0.1, target=0.05)
    chunk = planned(pacer, beside(10, 5000), LIMITS)[-1].length
    assert chunk == planned(known(0.1), beside(10, 5000), LIMITS)[-1].length
    assert pacer.unmet_s == pytest.approx(0.1, rel=0.05)
    planned(pacer, beside(1, 5000), LIMITS)
    assert pacer.unmet_s == pytest.approx(0.055, rel=0.05)


def test_auto_does_not_hold_prompts_back_before_it_knows_a_decode_tick():
    slots = [View(0, 10, 1, decoding=True), View(1, 0, 5000)]
    assert [p.length for p in planned(Pacer("auto"), slots, LIMITS)] == [1, 1024]


def test_longest_chunk_solves_chunk_time():
    model, rng = TickTimeModel(), random.Random(0)
    for i in range(60):
        shape = TickShape(0, 0, ((37 * i, 20 + 11 * (i % 17)),))
        model.learn(shape, Machine().seconds(shape, rng))
    for start in (0, 1000, 5000):
        length = model.longest_chunk(start, 0.02)
        assert model.chunk_s(start, length) <= 0.02 < model.chunk_s(start, length + 2)


@pytest.mark.parametrize("first", [(0, 128), (16, 48)])
def test_a_first_chunk_says_nothing_of_depth(first):
    """What was measured while a busy server started was wrong; then comes the first prompt beside streams.

    Its time must not be laid to the cells before it, of which there are next to none: a deep chunk would then
    seem to take many times as long, and never be tried.
    """
    model = TickTimeModel(GRAIN)
    opened = [(1, (), 0.327), (0, ((0, 1),), 0.075), (2, (), 0.155), (4, (), 0.491)]
    model.calibrate([(TickShape(n, 0, chunks), seconds) for n, chunks, seconds in opened])
    for _ in range(20):
        model.learn(TickShape(4, 150, ()), 0.08)
    model.learn(TickShape(4, 150, (first,)), 1.1)
    assert model.chunk_s(896, 129, mixed=True) <= 1.2 * model.chunk_s(0, 129, mixed=True)
    assert model.chunk_s(896, 48, mixed=True) <= 1.5 * model.chunk_s(0, 48, mixed=True)
