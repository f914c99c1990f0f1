"""The request table, case by case, and who is asked for which tick."""

import pytest

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.backend.select import HostSelector
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.request import Request
from cobali_ray.core.sequence import Sequence
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import open_selector
from cobali_ray.engine.table import RequestTable
from cobali_ray.errors import ConfigError
from cobali_ray.settings import read_settings
from cobali_ray.testing import FakeClock, Recorder


def sequence(slot_id, *, prompt=(1, 2, 3), output=(), computed=0, max_tokens=3):
    one = Sequence(Request(request_id=str(slot_id), prompt=prompt, max_tokens=max_tokens), arrived_s=0.0)
    one.tokens.extend(output)
    one.slot_id, one.n_computed = slot_id, computed
    return one


def column(table, slot_id):
    return table.requests[:, slot_id].tolist()


def test_a_column_follows_its_sequence():
    table = RequestTable(3)
    assert table.requests.tolist() == [[0, 0, 0]] * 5 + [[0, 1, 2]]
    table.renew(sequence(1, computed=1))
    assert column(table, 1) == [1, 0, 2, 3, 1, 1]
    assert table.prefilling == {1}
    table.renew(sequence(1, output=(7,), computed=3))
    assert column(table, 1) == [1, 1, 1, 7, 3, 1]
    assert not table.prefilling
    table.renew(sequence(1, computed=2))
    table.clear(1)
    assert column(table, 1) == [0, 0, 0, 0, 0, 1]
    assert not table.prefilling


def test_decoding_columns_move_together():
    table = RequestTable(4)
    for slot_id in (0, 1, 3):
        table.renew(sequence(slot_id, output=(7,), computed=3))
    table.advance([0, 3])
    table.sampled([0, 3], [8, 9])
    assert column(table, 0) == [1, 1, 1, 8, 4, 0]
    assert column(table, 1) == [1, 1, 1, 7, 3, 1]
    assert column(table, 3) == [1, 1, 1, 9, 4, 3]
    assert table.tokens([3, 1]).tolist() == [9, 7]


@pytest.mark.parametrize(
    ("max_tokens", "goes_on"),
    [
        pytest.param(2, False, id="the-token-in-flight-is-the-last"),
        pytest.param(3, True, id="one-more-after-it"),
        pytest.param(2**31 - 1, True, id="no-length-overflows"),
    ],
)
def test_ahead_leaves_out_who_reaches_its_length(max_tokens, goes_on):
    table = RequestTable(1)
    table.renew(sequence(0, output=(7,), computed=3, max_tokens=max_tokens))
    before = table.requests.copy()
    assert len(HostSelector().continuous(table.ahead(), 1)) == 1, "its token is not computed yet"
    table.advance([0])
    assert len(HostSelector().continuous(table.ahead(), 1)) == goes_on
    assert (table.requests - before)[4].tolist() == [1], "looking ahead changes nothing"


def test_who_was_stopped_is_not_chosen_again():
    table = RequestTable(2)
    for slot_id in (0, 1):
        table.renew(sequence(slot_id, output=(7,), computed=3))
    table.stop(0)
    assert HostSelector().continuous(table.ahead(), 2).slot_id.tolist() == [1]


class Asked(HostSelector):
    """Notes what it was asked."""

    def __init__(self):
        self.asked = []

    def continuous(self, requests, budget):
        self.asked.append(budget)
        return super().continuous(requests, budget)

    def sequential(self, requests):
        self.asked.append("first")
        return super().sequential(requests)


@pytest.mark.parametrize("overlaps", [False, True], ids=["inline", "overlap"])
@pytest.mark.parametrize(
    ("n_slots", "question"), [pytest.param(3, 6, id="continuous"), pytest.param(1, "first", id="sequential")]
)
def test_ticks_of_pure_decode_are_chosen_by_the_selector(n_slots, question, overlaps):
    backend = ScriptedBackend(n_slots=n_slots, n_ctx_slot=32, n_batch=6, overlaps=overlaps)
    limits = EngineLimits(
        n_slots=n_slots, n_ctx_slot=32, n_cells=backend.n_cells, token_budget=6, prefill_chunk=6
    )
    selector = Asked()
    engine = Engine(backend, limits, FakeClock(), Recorder(), selector=selector)
    for i in range(n_slots):
        engine.submit(Request(request_id=str(i), prompt=(65, 66), max_tokens=5))
    assert engine.tick().n_prefill == 2 * n_slots
    assert selector.asked == [question] * overlaps, "only for the tick after this one"
    decodes = 0
    while engine.has_work:
        stats = engine.tick()
        decodes += stats is not None
        assert stats is None or stats.n_prefill == 0
    assert decodes == 4
    assert set(selector.asked) == {question}
    assert len(selector.asked) == decodes + overlaps, "and once in vain, when everybody has ended"


def test_cuda_without_a_device_stops_the_start():
    try:
        import cupy
    except ImportError:
        pass
    else:
        if cupy.cuda.is_available():
            pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError) as caught:
        open_selector(read_settings({"selector": "cuda"}))
    assert caught.value.setting == "selector"
    assert open_selector(read_settings({})).name == "host"


def test_host_is_taken_at_its_word():
    assert open_selector(read_settings({"selector": "host"})).name == "host"
