"""Sequence ids exchanged on real llama.cpp: what is computed afterwards is what it was without."""

import random
from array import array

import archs
import numpy as np
import pytest
from test_llama_backend import Bench, prompt

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend

pytestmark = pytest.mark.model

STEPS = (((0, 0, 90, True), (1, 0, 60, True)), ((0, 90, 1, True), (1, 60, 1, True)))
"""Two sequences begin and go on; slots 2 and 3 are empty."""
AFTER = ((0, 91, 1, True), (1, 61, 1, True))


def logits_after(bench, *exchanged):
    """Return the logits of both slots after their ids were exchanged."""
    bench.backend.clear()
    for step in STEPS:
        bench.step(*step)
    for pair in exchanged:
        bench.backend.swap(*pair)
    spans = sorted(AFTER, key=lambda span: bench.backend._seq_ids[span[0]])
    rows = bench.step(*spans)
    return rows[[span[0] for span in spans]]


HOW = {
    "two-that-hold-something": [(0, 1)],
    "into-empty-ones-and-around": [(1, 3), (0, 2), (3, 2)],
}


@pytest.mark.parametrize("exchanged", HOW.values(), ids=HOW.keys())
@pytest.mark.parametrize(
    "kind",
    [
        {"flash_attn": "off"},
        {"flash_attn": "on"},
        {"flash_attn": "on", "type_k": "q8_0", "type_v": "q4_0"},
        {"flash_attn": "on", "unified": True},
    ],
    ids=lambda kind: "-".join(map(str, kind.values())),
)
def test_slots_keep_to_the_bit_what_they_hold(open_tiny, kind, exchanged):
    bench = Bench(open_tiny(**kind), [prompt(seed, 300) for seed in range(4)])
    expected, logits = logits_after(bench), logits_after(bench, *exchanged)
    if "unified" in kind:  # cells lie in another order there
        np.testing.assert_allclose(logits, expected, atol=0.02)
    else:
        assert np.array_equal(logits, expected)


@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_cells_are_cut_copied_saved_and_restored_by_slot(open_tiny, flash_attn):
    bench = Bench(open_tiny(flash_attn=flash_attn), [prompt(seed, 300) for seed in range(4)])
    backend = bench.backend
    backend.measure_cell()
    bench.sequences[1:] = [bench.sequences[0]] * 3

    def used(*, swaps):
        backend.clear()
        bench.step((0, 0, 120, True))
        swaps and backend.swap(0, 3)
        backend.copy(0, 1, 100)
        swaps and backend.swap(1, 2)
        (cells,) = backend.save(1, [(0, 80)])
        backend.truncate(0, 50)
        swaps and backend.swap(2, 0)
        backend.restore(2, [cells], 70)
        return [bench.step((i, n, 9, True))[0] for i, n in enumerate((50, 100, 70))], cells.tobytes()

    (plain, cells), (swapped, same_cells) = used(swaps=False), used(swaps=True)
    assert np.array_equal(plain, swapped)
    assert cells == same_cells
    assert backend._seq_ids.tolist() == [1, 2, 3, 0]
    backend.clear()
    assert backend._seq_ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "family", ["moe", "latent", "hybrid-delta", "hybrid-mamba", "recurrent", "window", "compressed"]
)
def test_what_is_exchanged_is_the_same_to_the_bit_in_every_kind_of_cache(models, family):
    config = LlamaConfig(
        path=models(family), n_slots=4, n_ctx=128, n_batch=256, n_threads=1, flash_attn="off"
    )
    backend, rng = LlamaBackend(config), random.Random(1)
    texts = [array("i", [rng.randrange(archs.N_VOCAB - 8) for _ in range(120)]) for _ in range(4)]
    bench = Bench(backend, texts)
    assert backend.dense == (family != "compressed")
    if backend.dense:
        expected = logits_after(bench)
        assert all(np.array_equal(logits_after(bench, *exchanged), expected) for exchanged in HOW.values())
    backend.close()
