"""The training loop: it learns, it goes on where it stopped, and it loses no checkpoint."""

from __future__ import annotations

import errno
import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest

pytest.importorskip(
    "torch", reason="PyTorch is not installed: see training/requirements.txt", exc_type=ImportError
)

import torch

from cobali_ray.models.registry import resolve
from cobali_workloads.models.vocabulary import CONTROL, CONTROL_TOKENS, NORMAL, Vocabulary
from training import checkpoint as checkpoint_module
from training.answer import greedy
from training.begin import place, read_weights, take_tokenizer
from training.checkpoint import load_weights
from training.corpus.checks import exact
from training.corpus.example import Example, Turn
from training.dataset import Dataset
from training.errors import TrainingError
from training.evaluate import Answered, as_table
from training.export import write_gguf
from training.loop import _SCORES, Run, _scored, train
from training.model import Decoder, Shape, attend_long, attend_short
from training.recipe import Recipe, Workshop
from training.steps import load_model
from training.tokenizer import load, vocabulary

SHAPE = Shape(n_layers=2, width=64, n_heads=2, n_kv_heads=1, ffn_width=96, n_vocab=32, n_ctx=64)
RECIPE = Recipe(shape=SHAPE, tokens_per_pass=256, passes_per_step=2, n_steps=8, n_warmup=2, seed=7)
END = 31


@pytest.fixture
def data():
    """Rows that say after `x 1` what x is: something to learn."""
    rng, rows = Random(1), []
    for _ in range(4000):
        word = rng.randrange(2, 30)
        rows.append([word] * rng.randrange(1, 9) + [1, word, END])
    tokens = np.array(list(itertools.chain(*rows)), np.uint16)
    spoken = np.concatenate([[False] * (len(row) - 2) + [True] * 2 for row in rows])
    return Dataset(
        tokens, spoken, np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    )


def quiet(*_):
    pass


def test_a_run_can_begin_with_the_weights_of_another(data, tmp_path):
    first = Run.start(replace(RECIPE, n_steps=40), "cpu")
    train(first, data, tmp_path / "first.pt", quiet)
    weights, digest = load_weights(tmp_path / "first.pt")
    recipe = replace(RECIPE, weights=digest)
    second = Run.resume(recipe, tmp_path / "second.pt", "cpu", weights)
    assert second.step == 0
    train(second, data, tmp_path / "second.pt", quiet)
    assert second.losses[0] < 0.7 * first.losses[0]
    with pytest.raises(TrainingError, match="another recipe"):
        Run.resume(RECIPE, tmp_path / "second.pt", "cpu")
    with pytest.raises(TrainingError, match="no checkpoint to begin with"):
        load_weights(tmp_path / "absent.pt")


WORDS = Vocabulary(
    tokens=(*"abcdefghijklmnopqrstuvwxyz01", "ab", *CONTROL_TOKENS),
    types=(NORMAL,) * 29 + (CONTROL,) * 3,
    merges=("a b",),
    pre="gpt-2",
)


@pytest.mark.parametrize(("quant", "most"), [("F32", 0.0), ("Q8_0", 0.01)])
def test_a_run_can_begin_with_a_gguf_file(tmp_path, quant, most):
    model = Run.start(RECIPE, "cpu").model
    write_gguf(tmp_path / "one.gguf", model, WORDS, quant)
    weights, digest = read_weights(tmp_path / "one.gguf")
    run = Run.resume(replace(RECIPE, weights=digest), tmp_path / "c.pt", "cpu", weights)
    for name, wanted in model.state_dict().items():
        assert torch.allclose(run.model.state_dict()[name], wanted, rtol=0, atol=most), name
    here = Workshop(tmp_path)
    take_tokenizer(tmp_path / "one.gguf", SHAPE, here)
    assert vocabulary(load(here.tokenizer)) == WORDS
    with pytest.raises(TrainingError, match="32 tokens and the model 33"):
        take_tokenizer(tmp_path / "one.gguf", replace(SHAPE, n_vocab=33), here)


def test_weights_are_named_as_models_are(tmp_path):
    assert place("builtin:tiny") == resolve("builtin:tiny")
    assert place("some/checkpoint.pt").name == "checkpoint.pt"
    with pytest.raises(TrainingError, match="nothing"):
        place("builtin:nothing")
    (tmp_path / "bad.gguf").write_bytes(b"not this")
    for name in ("bad.gguf", "absent.gguf"):
        with pytest.raises(TrainingError, match="no GGUF file"):
            read_weights(tmp_path / name)


def test_what_comes_before_a_spoken_token_is_scored():
    weights = np.array([[0, 0, 0.6, 0.5], [0, 0.7, 0, 0]], np.float32)
    places, wanted = _scored(weights)
    assert len(places) == len(wanted) == _SCORES
    assert places[:3].tolist() == [1, 2, 4]
    assert wanted[:3] == pytest.approx([0.6, 0.5, 0.7])
    assert not wanted[3:].any()


def test_the_mean_of_two_runs_is_what_is_exported(tmp_path):
    here = Workshop(tmp_path / "run")
    here.folder.mkdir()
    runs = [Run.start(replace(RECIPE, seed=seed), "cpu") for seed in (7, 8)]
    runs[0].save(here.checkpoint)
    runs[1].save(tmp_path / "other.pt")
    mean = load_model(RECIPE, here, [tmp_path / "other.pt"])
    one, other, both = (
        model.state_dict()["embedding.weight"] for model in (runs[0].model, runs[1].model, mean)
    )
    assert torch.allclose(both, (one + other) / 2)
    assert torch.equal(load_model(RECIPE, here).state_dict()["embedding.weight"], one)
    larger = replace(RECIPE, shape=replace(SHAPE, n_layers=3, width=96, n_heads=3))
    Run.start(larger, "cpu").save(tmp_path / "larger.pt")
    with pytest.raises(TrainingError, match="different shapes"):
        load_model(RECIPE, here, [tmp_path / "larger.pt"])


class StoppedError(Exception):
    pass


def interrupt_at(step):
    def heard(now, *_):
        if now == step:
            raise StoppedError

    return heard


def test_it_learns(data, tmp_path):
    run = Run.start(replace(RECIPE, n_steps=40), "cpu")
    train(run, data, tmp_path / "c.pt", quiet)
    assert run.losses[-1] < 0.5 * run.losses[0]
    assert greedy(run.model.eval(), [[5, 5, 5, 1]], end=END, n_most=4) == [[5]]


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(data, tmp_path):
    whole = Run.start(RECIPE, "cpu")
    train(whole, data, tmp_path / "whole.pt", quiet)
    with pytest.raises(StoppedError):
        train(Run.start(RECIPE, "cpu"), data, tmp_path / "half.pt", interrupt_at(3))
    resumed = Run.resume(RECIPE, tmp_path / "half.pt", "cpu")
    assert resumed.step == 3
    train(resumed, data, tmp_path / "half.pt", quiet)
    assert resumed.losses == pytest.approx(whole.losses, rel=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.pt", "whole.pt"]


def test_a_finished_run_has_nothing_left_to_do(data, tmp_path):
    train(Run.start(RECIPE, "cpu"), data, tmp_path / "c.pt", quiet)
    resumed = Run.resume(RECIPE, tmp_path / "c.pt", "cpu")
    train(resumed, data, tmp_path / "c.pt", interrupt_at(1))
    assert resumed.step == len(resumed.losses) == 8


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    Run.start(RECIPE, "cpu").save(tmp_path / "c.pt")
    with pytest.raises(TrainingError, match="another recipe"):
        Run.resume(replace(RECIPE, seed=8), tmp_path / "c.pt", "cpu")


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "c.pt").write_bytes(b"half of a file")
    with pytest.raises(TrainingError, match="damaged"):
        Run.resume(RECIPE, tmp_path / "c.pt", "cpu")


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    run = Run.start(RECIPE, "cpu")
    run.save(tmp_path / "c.pt")
    before = (tmp_path / "c.pt").read_bytes()

    def full(_state, file):
        file.write(b"part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_module.torch, "save", full)
    with pytest.raises(TrainingError, match="No space left"):
        run.save(tmp_path / "c.pt")
    assert (tmp_path / "c.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


def test_the_rate_goes_up_stays_and_falls_to_nothing():
    scales = [Recipe(n_warmup=10, share_cooldown=0.5).scale(step, 100) for step in range(100)]
    assert scales[0] == pytest.approx(0.1)
    assert scales[10:50] == [1.0] * 40
    assert scales[99] == pytest.approx(0.02)


def test_the_table_counts_by_kind_all_of_them_and_each_set():
    right, wrong = (
        Answered(
            Example(kind=kind, source="s", turns=(Turn("assistant", "yes"),), check=exact("yes")), text, True
        )
        for kind, text in (("sums", "yes"), ("facts", "no"))
    )
    table = as_table([right, wrong], {"plain": [wrong]})
    assert "| sums | 1 | 1 | 100.0% | 100.0% |" in table
    assert "| **all** | 2 | 1 | 50.0% | 100.0% |\n| plain | 1 | 0 | 0.0% | 100.0% |" in table


def test_the_future_is_not_seen():
    model = Decoder(SHAPE).eval()
    with torch.inference_mode():
        one, two = model(torch.tensor([[1, 2, 3, 4]])), model(torch.tensor([[1, 2, 3, 9]]))
    assert torch.equal(one[:, :3], two[:, :3])
    assert not torch.equal(one[:, 3], two[:, 3])


def test_both_ways_of_attending_agree():
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, n, 7, 16) for n in (4, 2, 2))
    assert torch.allclose(attend_short(q, k, v), attend_long(q, k, v), atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"width": 60}, id="no-q8-blocks"),
        pytest.param({"n_heads": 3, "n_kv_heads": 3}, id="heads-do-not-divide"),
        pytest.param({"n_kv_heads": 3}, id="kv-heads-do-not-divide"),
    ],
)
def test_an_impossible_shape_is_an_error(wrong):
    with pytest.raises(ValueError, match=r"share|blocks"):
        Shape(**wrong)


def test_a_model_ships_in_its_size():
    n = sum(parameter.numel() for parameter in Decoder(Shape()).parameters())
    assert 3_000_000 <= n <= 8_000_000
