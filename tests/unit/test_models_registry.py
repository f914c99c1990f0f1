import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cobali_ray.errors import ConfigError, MissingExtraError, ModelNotFoundError
from cobali_ray.models.builtin import Order, builtins
from cobali_ray.models.registry import available, describe, resolve
from cobali_workloads.models import bpe
from cobali_workloads.models.vocabulary import CONTROL, CONTROL_TOKENS, NORMAL, PaddedVocabulary

TINY = "builtin:synthetic-tiny"
BIG = builtins()["synthetic-tiny-152k"]


def order(cache_dir, **changes):
    return Order(**{"cache_dir": cache_dir, "progress": lambda what, done: None, **changes})


@pytest.fixture(scope="module")
def heard():
    """What was told of how far making the model was."""
    return []


@pytest.fixture(scope="module")
def cache(tmp_path_factory, heard):
    folder = tmp_path_factory.mktemp("cache")
    resolve(TINY, cache_dir=folder, progress=lambda _, done: heard.append(done))
    return folder


@pytest.mark.thorough
def test_another_process_makes_the_same_bytes(cache, tmp_path):
    make = (
        "import sys; from pathlib import Path; from cobali_ray.models.registry import resolve;"
        "print(resolve(sys.argv[1], cache_dir=Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", make, TINY, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    made = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(made).read_bytes() == resolve(TINY, cache_dir=cache).read_bytes()


def test_the_file_name_tells_quant_seed_and_vocabulary_apart(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF one")
    (tmp_path / "b.gguf").write_bytes(b"GGUF two")
    orders = [
        order(tmp_path),
        order(tmp_path, seed=1),
        order(tmp_path, vocab_gguf=tmp_path / "a.gguf"),
        order(tmp_path, vocab_gguf=tmp_path / "b.gguf"),
    ]
    paths = {BIG.path(quant, wanted) for quant in BIG.quants for wanted in orders}
    assert len(paths) == len(BIG.quants) * len(orders)


def test_a_made_file_is_used_again_and_half_a_file_is_not(cache, tmp_path):
    path = resolve(TINY, cache_dir=cache)
    before = path.stat().st_ino
    assert resolve(TINY, cache_dir=cache).stat().st_ino == before
    (tmp_path / path.name).write_bytes(b"")
    assert resolve(TINY, cache_dir=tmp_path).read_bytes() == path.read_bytes()


def test_two_who_make_the_same_model_at_once_both_succeed(tmp_path):
    start, made = threading.Barrier(2), []

    def make():
        def progress(what, done):
            if done == 0.0:
                start.wait(timeout=30)  # both have found nothing there

        made.append(resolve(TINY, cache_dir=tmp_path, progress=progress).read_bytes())

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert made[0] == made[1]
    assert len(list(tmp_path.iterdir())) == 1


def test_progress_starts_at_nothing_and_ends_at_all(cache, heard):
    assert heard[0] == 0.0
    assert heard[-1] == 1.0
    assert len(heard) > 10


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        pytest.param(
            "builtin:nobody", "there are tiny, synthetic-tiny, synthetic-tiny-152k", id="unknown-name"
        ),
        pytest.param("builtin:synthetic-tiny:Q9", "it has Q8_0, F16", id="unknown-quant"),
        pytest.param("absent.gguf", "there is no file", id="missing-file"),
        pytest.param("~nobody_at_all/x", "there is no such user", id="unknown-user"),
    ],
)
def test_a_reference_that_leads_nowhere_names_what_there_is(tmp_path, reference, says):
    with pytest.raises(ModelNotFoundError, match=says) as caught:
        resolve(reference, cache_dir=tmp_path)
    assert caught.value.setting == "model"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "cannot be read", id="missing"),
        pytest.param(b"text", "not a GGUF", id="other-file"),
        pytest.param(b"GGUF\x03\x00\x00\x00" + bytes(16), "no ChatML", id="no-vocabulary"),
    ],
)
def test_a_vocabulary_file_that_does_not_serve_is_named(tmp_path, content, says):
    path = tmp_path / "v.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        resolve("builtin:synthetic-tiny-152k", cache_dir=tmp_path / "c", vocab_gguf=path)
    assert caught.value.setting == "--vocab-gguf"


def test_a_vocabulary_of_another_size_is_refused(cache, tmp_path):
    with pytest.raises(ConfigError, match="has 4096 tokens and the model 151936"):
        resolve("builtin:synthetic-tiny-152k", cache_dir=tmp_path, vocab_gguf=resolve(TINY, cache_dir=cache))


def test_the_list_has_every_quant_and_says_which_are_made(cache):
    rows = {(info.name, info.quant): info for info in available(cache_dir=cache)}
    assert len(rows) == sum(len(row.quants) for row in builtins().values())
    made = rows["synthetic-tiny", "Q8_0"]
    assert made.made
    assert made.size_bytes == resolve(TINY, cache_dir=cache).stat().st_size
    assert [key for key, info in rows.items() if info.made] == [("tiny", "Q8_0"), ("synthetic-tiny", "Q8_0")]
    assert made.reference == TINY
    assert rows["synthetic-tiny", "F16"].reference == f"{TINY}:F16"


def test_without_the_laboratory_a_synthetic_model_is_refused_with_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cobali_workloads.models", None)
    assert [info.name for info in available(cache_dir=tmp_path)] == ["tiny"]
    assert resolve("builtin:tiny", cache_dir=tmp_path).exists()
    with pytest.raises(MissingExtraError, match=r"pip install .*workloads"):
        resolve(TINY, cache_dir=tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"there are tiny$"):
        resolve("builtin:nobody", cache_dir=tmp_path)


def test_a_file_that_is_gone_is_described_as_missing(tmp_path):
    with pytest.raises(ModelNotFoundError, match="gone"):
        describe(tmp_path / "gone.gguf")


def test_a_file_is_described(cache):
    facts = describe(resolve(TINY, cache_dir=cache))
    wanted = {
        "name": "synthetic-tiny", "architecture": "qwen2", "n_layers": 4, "width": 256, "ffn_width": 768,
        "n_heads": 4, "n_kv_heads": 2, "n_vocab": 4096, "n_ctx_train": 32768, "quant": "Q8_0",
        "tensor_types": {"Q8_0": 29, "F32": 21}, "has_chat_template": True, "parameters": 4_198_656,
    }  # fmt: skip
    assert wanted.items() <= facts.items()
    assert "andom weights" in facts["description"]


def test_a_padded_vocabulary_is_full_without_repeating_itself():
    vocabulary = PaddedVocabulary().load(20_000)
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens) == 20_000
    assert vocabulary.tokens[-3:] == CONTROL_TOKENS
    assert set(vocabulary.types[:-3]) == {NORMAL}
    assert set(vocabulary.types[-3:]) == {CONTROL}


def test_more_words_than_there_are_syllables_for_are_refused():
    with pytest.raises(ValueError, match="more than the syllables give"):
        bpe.invented_words(5_000_000, existing=frozenset())
