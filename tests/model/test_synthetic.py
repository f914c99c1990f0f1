"""The synthetic models as llama.cpp sees them, through its raw API."""

import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path

import llama_cpp as lc
import numpy as np
import pytest
import tokenizers

from cobali_ray.actors.processes import descendants, has_ended
from cobali_ray.errors import BackendError
from cobali_ray.models.registry import describe, resolve
from cobali_workloads.models import bpe
from cobali_workloads.models.quantize import quantize_file
from cobali_workloads.models.vocabulary import CONTROL_TOKENS
from tests.waiting import wait_until

pytestmark = pytest.mark.model

REAL_VOCABULARY = Path(__file__).parents[3] / "shared" / "data" / "ggml-vocab-qwen2.gguf"
TRICKY = {
    "plain": "The quick brown fox, again and again.",
    "code": "def f(x):\n\treturn {'a': x**2}  # 3.14\r\n\n\n",
    "accents": "Zażółć gęślą jaźń, árvíztűrő tükörfúrógép",
    "scripts": "你好\uff0c世界 こんにちは 안녕하세요 שלום مرحبا नमस्ते สวัสดี",
    "emoji": "👩‍💻🇩🇪❤️🏳️‍🌈",
    "combining": "e\u0301 \u200d \u202e x \ufeff",
    "spaces": "  a   b \u00a0\u2003 ",
    "rare": "\U00010348\U0001f9ff\uffff\x00\x01\x7f",
    "looks-like-control": "a <|im_start| b |im_end|>",
}
PROMPTS = ("Hello", "Hello there", "The capital of France is", "The capital of Italy is", "Write a poem.")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    silent = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    yield
    lc.llama_log_set(ctypes.cast(None, lc.llama_log_callback), ctypes.c_void_p(0))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def real_vocabulary():
    if not REAL_VOCABULARY.exists():
        pytest.skip("the Qwen2 vocabulary GGUF is not here")
    return REAL_VOCABULARY


class Model:
    """A loaded model, its vocabulary, and the two or three calls the tests need."""

    def __init__(self, path, *, vocab_only):
        params = lc.llama_model_default_params()
        params.vocab_only = vocab_only
        self.model = lc.llama_model_load_from_file(os.fsencode(path), params)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = lc.llama_model_get_vocab(self.model)
        self.n_vocab = lc.llama_vocab_n_tokens(self.vocab)

    def close(self):
        lc.llama_model_free(self.model)

    def tokenise(self, text, *, special=False):
        data = text.encode()
        out = (lc.llama_token * (len(data) + 8))()
        n = lc.llama_tokenize(self.vocab, data, len(data), out, len(out), False, special)
        assert n >= 0
        return list(out[:n])

    def piece(self, token, *, special=False):
        out = ctypes.create_string_buffer(256)
        n = lc.llama_token_to_piece(self.vocab, token, out, len(out), 0, special)
        assert n >= 0
        return out.raw[:n]

    def greedy(self, prompts, n_tokens):
        """Continue each prompt on its own; returns token ids per prompt. Every logit must be finite."""
        params = lc.llama_context_default_params()
        params.n_ctx = params.n_batch = 256
        params.n_threads = params.n_threads_batch = 1
        context = lc.llama_init_from_model(self.model, params)
        try:
            return [self._continue(context, self.tokenise(prompt), n_tokens) for prompt in prompts]
        finally:
            lc.llama_free(context)

    def _continue(self, context, feed, n_tokens):
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        out = []
        for _ in range(n_tokens):
            tokens = (lc.llama_token * len(feed))(*feed)
            assert lc.llama_decode(context, lc.llama_batch_get_one(tokens, len(feed))) == 0
            logits = np.ctypeslib.as_array(lc.llama_get_logits_ith(context, -1), shape=(self.n_vocab,))
            assert np.isfinite(logits).all()
            assert 1 < logits.std() < 10
            feed = [int(logits.argmax())]
            out += feed
        return tuple(out)


@pytest.fixture(scope="module")
def tiny(cache):
    model = Model(resolve("builtin:synthetic-tiny", cache_dir=cache), vocab_only=False)
    yield model
    model.close()


@pytest.fixture(
    scope="module",
    params=[
        "tiny",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("152k-padded", "152k-copied")),
    ],
)
def vocabulary(request, cache):
    """Each vocabulary a synthetic model may have, without its weights."""
    if request.param == "152k-copied":
        vocab_gguf = request.getfixturevalue("real_vocabulary")
        path = resolve("builtin:synthetic-tiny-152k", cache_dir=cache, vocab_gguf=vocab_gguf)
    else:
        name = "synthetic-tiny" if request.param == "tiny" else "synthetic-tiny-152k"
        path = resolve(f"builtin:{name}", cache_dir=cache)
    model = Model(path, vocab_only=True)
    yield model
    model.close()


@pytest.mark.parametrize("text", TRICKY.values(), ids=TRICKY)
def test_text_comes_back_from_its_tokens(vocabulary, text):
    tokens = vocabulary.tokenise(text)
    assert b"".join(map(vocabulary.piece, tokens)).decode() == text


def test_every_byte_has_tokens(vocabulary):
    every = "".join(
        map(chr, itertools.chain(range(1, 0x800), range(0x800, 0xD800, 97), range(0x10000, 0x110000, 9973)))
    )
    assert b"".join(map(vocabulary.piece, vocabulary.tokenise(every))).decode() == every


def test_control_tokens_are_one_token_and_print_as_nothing(vocabulary):
    for text in CONTROL_TOKENS:
        (token,) = vocabulary.tokenise(text, special=True)
        assert lc.llama_vocab_is_control(vocabulary.vocab, token)
        assert vocabulary.piece(token) == b""
        assert vocabulary.piece(token, special=True).decode() == text
        assert len(vocabulary.tokenise(text)) > 1, "a client's text cannot end a message"


def test_the_end_token_ends_a_message(vocabulary):
    (end,) = vocabulary.tokenise("<|im_end|>", special=True)
    assert lc.llama_vocab_eos(vocabulary.vocab) == end
    assert lc.llama_vocab_is_eog(vocabulary.vocab, end)
    assert not lc.llama_vocab_get_add_bos(vocabulary.vocab)


@pytest.mark.parametrize("vocabulary", ["tiny"], indirect=True)
def test_llama_cpp_tokenises_as_the_trainer_does(vocabulary):
    tokens, merges = bpe.train(vocabulary.n_vocab - len(CONTROL_TOKENS))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert {name: vocabulary.tokenise(text) for name, text in TRICKY.items()} == {
        name: theirs.encode(text).ids for name, text in TRICKY.items()
    }


def test_greedy_text_depends_on_the_prompt_and_moves_on(tiny):
    texts = tiny.greedy(PROMPTS, 32)
    assert len({text[:4] for text in texts}) == len(PROMPTS), "each prompt goes its own way at once"
    assert min(len(set(text)) for text in texts) > 20, "no text is stuck"


@pytest.mark.thorough  # it is written first, which takes long
@pytest.mark.parametrize("copied", [False, True], ids=["padded", "copied"])
def test_the_half_billion_has_qwens_shape_and_reads_its_prompt(cache, request, copied):
    vocab_gguf = request.getfixturevalue("real_vocabulary") if copied else None
    path = resolve("builtin:synthetic-qwen2.5-0.5b", cache_dir=cache, vocab_gguf=vocab_gguf)
    facts = describe(path)
    wanted = {
        "architecture": "qwen2", "parameters": 494_032_768, "n_layers": 24, "width": 896, "ffn_width": 4864,
        "n_heads": 14, "n_kv_heads": 2, "n_vocab": 151_936, "n_ctx_train": 32768, "rope_base": 1e6,
        "quant": "Q4_0", "has_chat_template": True,
    }  # fmt: skip
    assert wanted.items() <= facts.items()
    model = Model(path, vocab_only=False)
    try:
        texts = model.greedy(PROMPTS[2:4], 4)
    finally:
        model.close()
    assert texts[0][0] != texts[1][0]
    path.unlink()


def test_llama_cpps_own_quantiser_is_deterministic_and_loads(cache, tmp_path):
    source = resolve("builtin:synthetic-tiny:F16", cache_dir=cache)
    for name, n_threads in (("one", 1), ("two", 2)):
        quantize_file(source, tmp_path / name, "Q5_K_M", n_threads=n_threads)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    facts = describe(tmp_path / "one")
    assert facts["quant"] == "Q5_K_M"
    assert set(facts["tensor_types"]) == {"F32", "Q5_K", "Q6_K"}, "the mix is llama.cpp's"
    model = Model(tmp_path / "one", vocab_only=False)
    try:
        assert len(set(model.greedy(PROMPTS, 4))) == len(PROMPTS)
    finally:
        model.close()


@pytest.mark.parametrize(
    ("file_type", "content", "says"),
    [
        pytest.param("Q9", b"", "none of Q5_K_M", id="unknown-type"),
        pytest.param(
            "Q5_K_M", b"GGUF", r"could not quantise .* \(exit 1\): .*failed to load", id="damaged-source"
        ),
    ],
)
def test_quantising_that_fails_says_so(tmp_path, file_type, content, says):
    (tmp_path / "in.gguf").write_bytes(content)
    with pytest.raises(BackendError, match=says):
        quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", file_type)


def test_a_quantiser_ends_with_the_process_that_is_killed(tmp_path):
    """Or it would go on for minutes, on all cores, for nobody."""
    os.mkfifo(source := tmp_path / "in.gguf")  # nobody writes: it waits for ever
    call = f"quantize_file(Path({str(source)!r}), Path({str(tmp_path / 'out.gguf')!r}), 'Q8_0')"
    program = f"from pathlib import Path; from cobali_workloads.models.quantize import quantize_file; {call}"
    with subprocess.Popen([sys.executable, "-c", program]) as caller:
        wait_until(lambda: any(map(has_loaded_llama, descendants(caller.pid))))
        below = descendants(caller.pid)
        caller.kill()
    wait_until(lambda: has_ended(*below))


def has_loaded_llama(pid):
    return "libllama" in Path(f"/proc/{pid}/maps").read_text()
