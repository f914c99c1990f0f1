"""Adapters in settings and on disk: the built-in one, and what is refused before llama.cpp sees it."""

import numpy as np
import pytest
from gguf import GGUFWriter

from cobali_ray.actors.layout import places, served_by
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.engine.opening import adapters_of
from cobali_ray.errors import ConfigError, ModelNotFoundError
from cobali_ray.models.adapters import find_adapter, invocation_of
from cobali_ray.models.ggufmeta import read_header
from cobali_ray.settings import read_settings, settings_of_engines

WIDTH, N_VOCAB, RANK = 8, 16, 2
MATRICES = {"blk.0.attn_q.weight": (8, 8), "blk.0.attn_v.weight": (4, 8), "blk.0.ffn_up.weight": (12, 8)}
OTHERS = {
    "token_embd.weight": (16, 8),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.ffn_up_exps.weight": (3, 12, 8),
}


def write(path, shapes, architecture="qwen2", **keys):
    writer = GGUFWriter(path, architecture)
    for name, value in keys.items():
        key = {"kind": "adapter.type", "alpha": "adapter.lora.alpha"}.get(name, name)
        if key == "type":
            writer.add_type(value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_key_value(key, *value)
    for name, shape in shapes.items():
        kind = np.int32 if name.endswith(".i32.lora_a") else np.float32
        writer.add_tensor(name, np.zeros(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pair(name, n_out=8, n_in=8, rank=RANK, b_rank=None):
    return {f"{name}.lora_a": (rank, n_in), f"{name}.lora_b": (n_out, b_rank or rank)}


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "model.gguf", MATRICES | OTHERS)


def adapter(tmp_path, shapes, architecture="qwen2", **keys):
    keys = {"type": "adapter", "kind": "lora", "alpha": 16.0} | keys
    return write(tmp_path / "adapter.gguf", shapes, architecture, **keys)


def test_an_adapter_for_this_model_is_found(tmp_path, model):
    shapes = pair("blk.0.attn_q.weight") | pair("blk.0.attn_v.weight", 4) | {"blk.0.attn_norm.weight": (8,)}
    deep = {"blk.0.ffn_up_exps.weight.lora_a": (3, 2, 8), "blk.0.ffn_up_exps.weight.lora_b": (3, 12, 2)}
    path = adapter(tmp_path, shapes | deep)
    assert find_adapter(str(path), model) == path


Q, EMBEDDING = "blk.0.attn_q.weight", "token_embd.weight"
INVOCATION = "adapter.alora.invocation_tokens"


def test_an_activated_adapter_says_what_invokes_it(tmp_path, model):
    path = adapter(tmp_path, pair(Q), **{INVOCATION: ([7, 300], 9, 4)})
    assert find_adapter(str(path), model) == path
    assert invocation_of(path) == (7, 300)
    assert invocation_of(adapter(tmp_path, pair(Q))) == ()


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        pytest.param((1, 7, 300, 2), 1, id="in-the-middle"),
        pytest.param((7, 300), 0, id="all-of-it"),
        pytest.param((7, 300, 1, 7, 300, 7), 3, id="the-last-one"),
        pytest.param((1, 7, 3, 300), None, id="not-there"),
        pytest.param((7 << 8, 300 << 8, 0), None, id="between-tokens"),
        pytest.param((), None, id="nothing"),
    ],
)
def test_an_adapter_changes_a_prompt_from_where_it_is_invoked(prompt, begins):
    assert Adapter("name", "key", "path", 1.0, (7, 300)).begins(prompt) == begins
    assert Adapter("name", "key", "path", 1.0).begins(prompt) == 0
    assert Adapter("name", "", "path", 0.0, (7, 300)).begins(prompt) is None


@pytest.mark.parametrize(
    ("shapes", "keys", "why"),
    [
        pytest.param(pair(Q), {"type": "model"}, "is not a LoRA adapter", id="a-model"),
        pytest.param(pair(Q), {"kind": "control"}, "is not a LoRA adapter", id="another-kind"),
        pytest.param(
            pair(Q), {"architecture": "llama"}, "for models of the architecture 'llama'", id="architecture"
        ),
        pytest.param(pair(Q), {"alpha": (16.0, 12)}, "alpha is not a float32", id="alpha-is-a-double"),
        pytest.param(pair(Q), {INVOCATION: ([0.5], 9, 6)}, "is no list of tokens", id="invoked-by-numbers"),
        pytest.param({}, {}, "changes nothing", id="empty"),
        pytest.param({Q: (8, 8)}, {}, "does not belong in an adapter", id="whole-matrix"),
        pytest.param(pair(f"{Q}.i32"), {}, "of type 26 does not belong", id="integers"),
        pytest.param(pair("blk.9.attn_q.weight"), {}, "no matrix of this name", id="layer-is-missing"),
        pytest.param(pair("blk.0.attn_norm"), {}, "no matrix of this name", id="vector"),
        pytest.param({f"{Q}.lora_a": (2, 8)}, {}, "has no lora_b", id="half-a-pair"),
        pytest.param(pair(Q, n_in=9), {}, "its lora_a and lora_b are", id="too-wide"),
        pytest.param(pair(Q, n_out=9), {}, "its lora_a and lora_b are", id="too-high"),
        pytest.param(pair(Q, b_rank=3), {}, "its lora_a and lora_b are", id="two-ranks"),
        pytest.param(
            {f"{Q}.lora_a": (2, 8), f"{Q}.lora_b": ()}, {}, "its lora_a and lora_b are", id="a-number"
        ),
        pytest.param(pair("blk.0.ffn_up_exps.weight", 12), {}, "lora_a and lora_b are", id="too-flat"),
        pytest.param(pair(EMBEDDING, 8, 16), {}, "the model's output too", id="tied-embedding"),
    ],
)
def test_what_is_no_adapter_for_this_model_is_refused(tmp_path, model, shapes, keys, why):
    keys = dict(keys)
    path = adapter(tmp_path, shapes, keys.pop("architecture", "qwen2"), **keys)
    with pytest.raises(ConfigError, match=why):
        find_adapter(str(path), model)


def test_the_embedding_may_be_changed_where_it_is_not_the_output(tmp_path):
    model = write(tmp_path / "model.gguf", MATRICES | OTHERS | {"output.weight": (16, 8)})
    good = {f"{EMBEDDING}.lora_a": (16, 2), f"{EMBEDDING}.lora_b": (8, 2)}
    assert find_adapter(str(adapter(tmp_path, good)), model)
    bad = {f"{EMBEDDING}.lora_a": (16, 3), f"{EMBEDDING}.lora_b": (8, 2)}
    with pytest.raises(ConfigError, match="lora_a and lora_b are"):
        find_adapter(str(adapter(tmp_path, bad)), model)


def test_a_file_that_is_cut_or_not_there_is_refused_by_the_adapters_name(tmp_path, model):
    whole = adapter(tmp_path, pair(Q)).read_bytes()
    cut = tmp_path / "cut.gguf"
    for n in (0, 3, 20, 100, 300):
        cut.write_bytes(whole[:n])
        with pytest.raises(ConfigError, match=r"^adapters.mine: '.*cut.gguf'"):
            adapters_of(read_settings({"adapters": {"mine": str(cut)}}), model)
    with pytest.raises(ConfigError, match=r"^adapters.mine: there is no file"):
        adapters_of(read_settings({"adapters": {"mine": str(tmp_path / "none.gguf")}}), model)
    with pytest.raises(ModelNotFoundError):
        find_adapter(str(tmp_path / "none.gguf"), model)


def test_the_built_in_one_is_made_once_for_a_model_and_a_seed(tmp_path, model):
    first, again, second = (
        find_adapter(f"builtin:synthetic-adapter{seed}", model, cache_dir=tmp_path)
        for seed in ("", ":0", ":7")
    )
    assert first == again != second
    assert first.read_bytes() != second.read_bytes()
    shapes = {tensor.name: tensor.shape for tensor in read_header(first).tensors}
    assert {name.rpartition(".")[0] for name in shapes} == set(MATRICES)
    assert shapes["blk.0.ffn_up.weight.lora_b"][0] == 12
    for wrong in ("builtin:tiny", "builtin:synthetic-adapter:x"):
        with pytest.raises(ConfigError, match="is not builtin:synthetic-adapter"):
            find_adapter(wrong, model, cache_dir=tmp_path)


def test_a_key_stands_for_bytes_and_scale(tmp_path, model):
    file = str(adapter(tmp_path, pair(Q)))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes((tmp_path / "adapter.gguf").read_bytes())
    asked = {
        "a": file,
        "copy": str(copy),
        "half": {"file": file, "scale": 0.5},
        "none": {"file": file, "scale": 0},
    }
    settings = read_settings({"adapters": asked, "cache_dir": str(tmp_path)})
    a, same, half, none = adapters_of(settings, model)
    assert a.key == same.key
    assert len({a.key, half.key, none.key}) == 3
    assert none.key == "", "scale 0 is the model itself"
    assert (half.name, half.path, half.scale) == ("half", file, 0.5)


def test_settings_name_files_and_scales(monkeypatch):
    asked = {"a": "a.gguf", "b": {"file": "b.gguf", "scale": 0.5}}
    monkeypatch.setenv("COBALI_ADAPTERS", '{"a": "a.gguf", "b": {"file": "b.gguf", "scale": 0.5}}')
    for settings in (read_settings({}), read_settings({"adapters": asked})):
        assert [(n, one.file, one.scale) for n, one in settings.adapters.items()] == [
            ("a", "a.gguf", 1.0), ("b", "b.gguf", 0.5),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "why"),
    [
        pytest.param({"adapters": {"tiny": "a.gguf"}}, "'tiny' cannot name an adapter", id="the-models-own"),
        pytest.param(
            {"adapters": {"x": "a"}, "model_aliases": ["x"]}, "'x' cannot name an adapter", id="an-alias"
        ),
        pytest.param({"adapters": {" x": "a"}}, "' x' cannot name an adapter", id="a-space"),
        pytest.param({"adapters": {"": "a"}}, "at least 1 character", id="no-name"),
        pytest.param({"adapters": {"x": ""}}, "at least 1 character", id="no-file"),
        pytest.param({"adapters": {"x": {"scale": 1.0}}}, "Field required", id="only-a-scale"),
        pytest.param({"adapters": {"x": {"file": "a", "scale": float("nan")}}}, "finite", id="no-number"),
        pytest.param({"adapters": {"x": {"file": "a", "rank": 1}}}, "not permitted", id="unknown"),
    ],
)
def test_settings_that_nobody_can_serve_are_refused(values, why):
    with pytest.raises(ConfigError, match=rf"^adapters: .*{why}"):
        read_settings(values)


def test_of_several_engines_each_name_belongs_to_one():
    own = {"model": "builtin:tiny", "adapters": {"law": "a.gguf"}}
    found = places(read_settings({"engines": {"a": own, "b": {"model": "builtin:synthetic-tiny"}}}))
    assert [one.adapters for one in served_by(found)] == [("law",), ()]
    both = {"a": own, "b": own | {"model_id": "other"}}
    with pytest.raises(ConfigError, match=r"^engines\.b\.adapters: the name .* is taken by engines\.a"):
        settings_of_engines(read_settings({"engines": both}))
