import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from cobali_workloads.models.shapes import ModelShape, TensorPlan, plan_tensors
from cobali_workloads.models.synthetic import SYNTHETIC_MODELS
from cobali_workloads.models.weights import draw

QWEN = ModelShape(n_layers=24, width=896, n_heads=14, n_kv_heads=2, ffn_width=4864, n_vocab=151_936)


def values_of(plan, seed=0):
    drawn = draw(plan, seed)
    if plan.kind in {"F32", "F16"}:
        return drawn
    return quants.dequantize(drawn, GGMLQuantizationType[plan.kind])


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_values_have_the_spread_that_was_planned_and_no_mean(kind):
    plan = TensorPlan("w", (256, 512), kind, 0.0, 0.05)
    values = values_of(plan).astype(np.float64)
    assert values.shape == plan.shape
    assert np.std(values) == pytest.approx(0.05, rel=0.01)
    # 131,072 draws: the error of the mean is 0.05/362; uncorrected codes are off by 0.005 (Q4_0).
    assert abs(np.mean(values)) < 5 * 0.05 / 362


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_a_draw_depends_on_seed_and_name_only(kind):
    plan = TensorPlan("w", (4, 64), kind, 0.0, 0.05)
    assert draw(plan, 1).tobytes() == draw(plan, 1).tobytes()
    assert draw(plan, 1).tobytes() != draw(plan, 2).tobytes()
    assert draw(plan, 1).tobytes() != draw(TensorPlan("v", (4, 64), kind, 0.0, 0.05), 1).tobytes()
    assert draw(plan, 1).nbytes == plan.n_bytes


def test_norms_sit_around_their_mean():
    assert np.mean(draw(TensorPlan("n", (4096,), "F32", 3.0, 0.1), 0)) == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize(
    ("name", "n_weights"),
    [("synthetic-qwen2.5-0.5b", 494_032_768), ("synthetic-qwen2.5-1.5b", 1_543_714_304)],
)
def test_the_shapes_of_qwen_have_as_many_weights_as_qwen(name, n_weights):
    (model,) = (model for model in SYNTHETIC_MODELS if model.name == name)
    plans = plan_tensors(model.shape, "Q8_0")
    assert sum(int(np.prod(plan.shape)) for plan in plans) == n_weights
    assert "output.weight" not in {plan.name for plan in plans}, "the embeddings are tied"


def test_a_q4_0_file_keeps_its_embedding_in_q8_0_as_llama_cpp_does():
    kinds = {plan.name: plan.kind for plan in plan_tensors(QWEN, "Q4_0")}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q.weight"] == "Q4_0"


def test_heads_that_do_not_share_the_width_are_refused():
    with pytest.raises(ValueError, match="do not share"):
        ModelShape(n_layers=1, width=100, n_heads=3, n_kv_heads=1, ffn_width=1, n_vocab=1)
