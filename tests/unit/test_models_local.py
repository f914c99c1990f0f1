"""Models of other programs: found in their folders, meant by their names."""

import json

import pytest

from cobali_ray.errors import ConfigError, ModelNotFoundError
from cobali_ray.models import registry
from cobali_ray.models.files import choose, models_among, parts_of, quant_of
from cobali_ray.models.local import local_models, meant_by
from cobali_ray.models.reference import parse_reference

EMPTY = b"GGUF\x03\x00\x00\x00" + bytes(16)
COMMIT = "c0ffee" * 6 + "abcd"


def put(path, content=EMPTY):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def put_ollama(folder, place, digest, kind="model"):
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:1"},
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"},
    ]
    put(folder / "manifests" / place, json.dumps({"layers": layers}).encode())
    put(folder / "blobs" / f"sha256-{digest}")


@pytest.fixture
def home(tmp_path):
    ollama = tmp_path / ".ollama/models"
    put_ollama(ollama, "registry.ollama.ai/library/qwen2.5/0.5b", "aa")
    put_ollama(ollama, "registry.ollama.ai/library/llama3/latest", "bb")
    put_ollama(ollama, "registry.ollama.ai/me/mine/v1", "cc")
    put_ollama(ollama, "hf.co/bartowski/Some-GGUF/Q4_K_M", "dd")
    put_ollama(ollama, "registry.ollama.ai/library/cloud/latest", "ee", kind="license")
    put(ollama / "manifests/registry.ollama.ai/library/broken/latest", b"{")
    for studio in (".lmstudio/models", ".cache/lm-studio/models"):
        put(tmp_path / studio / f"pub/{studio[1:3]}-GGUF/{studio[1:3]}-Q4_K_M.gguf")
    put(tmp_path / ".lmstudio/models/pub/lm-GGUF/lm-Q8_0.gguf")
    put(tmp_path / ".lmstudio/models/pub/lm-GGUF/mmproj-lm-f16.gguf")
    for i in (1, 2, 3):
        put(tmp_path / f".cache/llama.cpp/big-{i:05d}-of-00003.gguf")
    put(tmp_path / ".cache/llama.cpp/half-00001-of-00003.gguf")
    put(tmp_path / ".cache/llama.cpp/qwen2.5-0.5b.gguf.downloadInProgress")
    repo = tmp_path / ".cache/huggingface/hub/models--owner--repo"
    for ref in ("main", "v1"):
        put(repo / "refs" / ref, COMMIT.encode())
    put(repo / "blobs/1")
    for commit in (COMMIT, "0" * 40):
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "snapshots" / commit / "m-Q5_K_M.gguf").symlink_to("../../blobs/1")
    put(tmp_path / ".cache/huggingface/hub/datasets--owner--repo/snapshots/0/m.gguf")
    return tmp_path


def test_every_programs_models_are_found(home):
    found = {model.reference: [file.name for file in model.files] for model in local_models({}, home)}
    assert found == {
        "ollama://qwen2.5:0.5b": ["sha256-aa"],
        "ollama://llama3:latest": ["sha256-bb"],
        "ollama://me/mine:v1": ["sha256-cc"],
        "ollama://hf.co/bartowski/Some-GGUF:Q4_K_M": ["sha256-dd"],
        "lmstudio://pub/lm-GGUF/lm-Q4_K_M.gguf": ["lm-Q4_K_M.gguf"],
        "lmstudio://pub/lm-GGUF/lm-Q8_0.gguf": ["lm-Q8_0.gguf"],
        "lmstudio://pub/ca-GGUF/ca-Q4_K_M.gguf": ["ca-Q4_K_M.gguf"],
        "llamacpp://big-00001-of-00003.gguf": [f"big-{i:05d}-of-00003.gguf" for i in (1, 2, 3)],
        "hf://owner/repo/m-Q5_K_M.gguf": ["m-Q5_K_M.gguf"],
        f"hf://owner/repo/m-Q5_K_M.gguf@{'0' * 40}": ["m-Q5_K_M.gguf"],
    }
    split = next(model for model in local_models({}, home) if model.source == "llamacpp")
    assert split.size_bytes == 3 * len(EMPTY)


def test_the_environment_says_where_else_they_are(home, tmp_path):
    elsewhere = {
        "OLLAMA_MODELS": str(home / ".ollama/models"),
        "LLAMA_CACHE": str(home / ".cache/llama.cpp"),
        "HF_HOME": str(home / ".cache/huggingface"),
    }
    found = {model.source for model in local_models(elsewhere, tmp_path / "nobody")}
    assert found == {"ollama", "llamacpp", "hf"}
    assert local_models({}, tmp_path / "nobody") == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen2.5:0.5b", ["ollama://qwen2.5:0.5b"]),
        ("QWEN2.5:0.5b", ["ollama://qwen2.5:0.5b"]),
        ("llama3", ["ollama://llama3:latest"]),
        ("ollama://llama3", ["ollama://llama3:latest"]),
        ("lmstudio://llama3", []),
        ("lm-q8_0", ["lmstudio://pub/lm-GGUF/lm-Q8_0.gguf"]),
        ("lm-GGUF:Q8_0", ["lmstudio://pub/lm-GGUF/lm-Q8_0.gguf"]),
        ("lmstudio://pub/ca-GGUF", ["lmstudio://pub/ca-GGUF/ca-Q4_K_M.gguf"]),
        ("pub/lm-GGUF", ["lmstudio://pub/lm-GGUF/lm-Q4_K_M.gguf", "lmstudio://pub/lm-GGUF/lm-Q8_0.gguf"]),
        ("owner/repo", ["hf://owner/repo/m-Q5_K_M.gguf"]),  # two revisions of it are one file
        ("nobody", []),
    ],
)
def test_a_name_means_the_models_that_have_it(home, name, meant):
    reference = parse_reference(name)
    found = [model.reference for model in meant_by(reference, local_models({}, home))]
    assert [one.partition("@")[0] for one in found] == meant


@pytest.fixture
def here(home, monkeypatch):
    monkeypatch.setattr(registry, "local_models", lambda: local_models({}, home))
    monkeypatch.chdir(home)
    return home


def test_a_clear_name_leads_to_its_file(here):
    assert registry.resolve("lm-q8_0") == here / ".lmstudio/models/pub/lm-GGUF/lm-Q8_0.gguf"
    assert registry.resolve("llamacpp://big-00001-of-00003").name == "big-00001-of-00003.gguf"
    assert registry.resolve("tiny") == registry.resolve("builtin:tiny")
    put(here / "lm-q8_0")
    assert str(registry.resolve("lm-q8_0")) == "lm-q8_0", "a file of that name goes first"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("qwen2.5:0.5", "no file or model 'qwen2.5:0.5' here; did you mean ollama://qwen2.5:0.5b"),
        ("ollama://lama3", "Ollama has no model 'lama3' here; did you mean ollama://llama3:latest"),
        ("tinny", "did you mean builtin:tiny"),
        ("pub/lm-GGUF", "several models here; name one of lmstudio://pub/lm-GGUF/lm-Q4_K_M.gguf, lmstudio"),
        ("zzzzzzzzzz", "no file or model 'zzzzzzzzzz' here; `cobali models list` shows what there is"),
    ],
)
def test_a_name_that_is_not_clear_names_others(here, name, says):
    with pytest.raises(ModelNotFoundError, match=says) as caught:
        registry.resolve(name)
    assert "\n" not in str(caught.value)


def test_a_builtin_and_a_download_of_one_name_are_told_apart(here):
    put_ollama(here / ".ollama/models", "registry.ollama.ai/library/tiny/latest", "ff")
    with pytest.raises(ModelNotFoundError, match="name one of builtin:tiny, ollama://tiny:latest"):
        registry.resolve("tiny")


def test_a_split_model_is_named_by_its_first_file_and_has_to_be_whole(tmp_path):
    first, second = (tmp_path / name for name in parts_of("m-00001-of-00002.gguf"))
    put(first)
    with pytest.raises(ModelNotFoundError, match=r"m-00002-of-00002\.gguf is not in the same folder"):
        registry.resolve(str(first))
    put(second)
    assert registry.resolve(str(first)) == first
    with pytest.raises(ConfigError, match=r"name the first, m-00001-of-00002\.gguf"):
        registry.resolve(str(second))
    assert registry.describe(first)["size_bytes"] == 2 * len(EMPTY), "a description is of all parts"


def test_a_name_that_counts_no_parts_is_an_ordinary_one(tmp_path):
    put(tmp_path / "m-00001-of-00000.gguf")
    assert registry.resolve(str(tmp_path / "m-00001-of-00000.gguf")).exists()


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("qwen2.5-0.5b-instruct-q5_k_m.gguf", "Q5_K_M"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("m.IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("m-BF16.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("q8-model.gguf", "Q8"),
        ("model.gguf", None),
    ],
)
def test_the_quant_is_read_from_the_name(name, quant):
    assert quant_of(name) == quant


def test_a_quant_is_a_whole_word_of_a_name():
    models = models_among(
        ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q4_0.gguf", "m-Q4_0_4_4.gguf", "m-IQ4_XS.gguf"]
    )
    assert choose(models, "q4_0", "it") == ("m-Q4_0.gguf",)
    assert choose(models, "IQ4_XS", "it") == ("m-IQ4_XS.gguf",)
    with pytest.raises(ModelNotFoundError, match="it has no Q4_K; it has IQ4_XS, Q4_0, "):
        choose(models, "Q4_K", "it")
    with pytest.raises(ModelNotFoundError, match=r"several files; name one of a\.gguf, b\.gguf"):
        choose(models_among(["b.gguf", "a.gguf"]), None, "it")
