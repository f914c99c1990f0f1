"""Vocab, the log and the thread policy on real llama.cpp."""

import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog
from gguf_keys import with_keys
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cobali_ray.backend import library
from cobali_ray.backend.vocab import Vocab
from cobali_ray.errors import InvalidParameterError, TooManyTokensError

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello"}]
ANY_TEXT = st.text(st.characters(), max_size=60)
"""Every code point, lone surrogates and NUL among them."""


@pytest.fixture(scope="module")
def vocab(tiny):
    vocab = Vocab.load(tiny)
    yield vocab
    vocab.close()


def with_template(tiny, path, template):
    """Copy the model with another chat template of the same length in bytes; None hides it."""
    data = tiny.read_bytes()
    key = b"tokenizer.chat_template"
    at = data.index(key)
    if template is None:
        data = data[:at] + b"tokenizer.chat_TEMPLATE" + data[at + len(key) :]
    else:
        start = at + len(key) + 12  # the value's type and length lie between
        length = int.from_bytes(data[start - 8 : start], "little")
        data = data[:start] + template.encode().ljust(length) + data[start + length :]
    path.write_bytes(data)
    return Vocab.load(path)


@given(text=ANY_TEXT)
def test_text_survives_tokens(vocab, text):
    tokens = vocab.tokenize(text, add_special=False, parse_special=False)
    assert all(0 <= t < vocab.n_vocab for t in tokens)
    expected = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert vocab.detokenize(tokens) == expected
    assert b"".join(map(vocab.piece, tokens)).decode("utf-8", "replace") == expected


@given(tokens=st.lists(st.integers(0, 4095), max_size=30))
def test_any_tokens_are_text(vocab, tokens):
    pieces = b"".join(map(vocab.piece, tokens))
    assert vocab.detokenize(tokens, special=False) == pieces.decode("utf-8", "replace")


@pytest.mark.parametrize("tokens", [[-1], [4096], [1, 2**31 - 1]])
def test_a_token_outside_the_vocabulary_is_refused(vocab, tokens):
    with pytest.raises(InvalidParameterError) as caught:
        vocab.detokenize(tokens)
    assert caught.value.param == "tokens"


def test_a_long_text_needs_no_second_guess(vocab):
    text = "\U0001f9ff" * 5000 + "a" * 5000
    assert vocab.detokenize(vocab.tokenize(text)) == text


def test_control_tokens_are_read_only_when_asked_and_show_nothing(vocab):
    text = "<|im_start|>user"
    parsed = vocab.tokenize(text, parse_special=True)
    plain = vocab.tokenize(text, parse_special=False)
    assert len(parsed) < len(plain)
    assert vocab.piece(parsed[0]) == b""
    assert vocab.detokenize(parsed) == vocab.detokenize(plain) == text
    assert vocab.detokenize(parsed, special=False) == "user"
    assert vocab.end_tokens
    assert all(vocab.piece(token) == b"" for token in vocab.end_tokens)


def test_a_template_that_goes_on_for_ever_ends_with_the_processors_time(tiny):
    endless = "{% for i in range(10 ** 5) %}{% for j in range(10 ** 5) %}{% endfor %}{% endfor %}"
    endless = "{% if messages[0].content == 'on and on' %}" + endless + "{% endif %}"  # not when it is opened
    with contextlib.closing(Vocab.load(tiny, chat_template=endless)) as vocab:
        vocab.chat._bounds._most_s = 0.2
        began_s = time.thread_time()
        with pytest.raises(InvalidParameterError, match=r"more than 0\.2 s"):
            vocab.chat.render([{"role": "user", "content": "on and on"}])
        assert time.thread_time() - began_s < 10


def test_the_chat_template_ends_with_the_assistants_turn(vocab):
    expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert vocab.chat.render(HELLO) == expected
    assert vocab.detokenize(vocab.tokenize(expected, add_special=False)) == expected


def test_a_model_without_template_speaks_chatml(tiny, tmp_path, vocab):
    bare = with_template(tiny, tmp_path / "bare.gguf", None)
    messages = [{"role": "system", "content": " s\n"}, *HELLO]
    assert bare.chat.render(messages) == vocab.chat.render(messages)
    bare.close()


def test_four_threads_read_one_vocabulary(vocab):
    texts = [f"{i} Zażółć gęślą jaźń 你好 \U0001f9ff {'x' * i}" for i in range(200)]
    expected = [vocab.tokenize(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(vocab.tokenize, texts)) == expected
            assert list(pool.map(vocab.detokenize, expected)) == texts
            chats = list(pool.map(lambda t: vocab.chat.render([{"role": "user", "content": t}]), texts))
            assert all(text in chat for text, chat in zip(texts, chats, strict=True))


def test_the_librarys_log_becomes_events(log_heard):
    del log_heard
    heard = library._callback()
    library.forget_errors()
    with structlog.testing.capture_logs() as events:
        for level, text in (
            (2, b"load: fine\n"),
            (3, b"half a "),
            (5, b"line\n"),
            (4, b"bad \xff\n"),
            (4, b"worse\n"),
        ):
            heard(level, text, None)
    assert [(e["log_level"], e["message"]) for e in events] == [
        ("debug", "half a line"),
        ("error", "bad \ufffd"),
        ("error", "worse"),
    ]
    assert library.errors() == "bad \ufffd; worse"
    library.forget_errors()
    assert library.errors() == "no reason given"


@pytest.mark.parametrize(
    ("asked", "spins"), [("passive", "'0'"), pytest.param("active", "'300000'", marks=pytest.mark.thorough)]
)
def test_the_wait_policy_set_from_python_reaches_libgomp(asked, spins):
    code = (
        "from cobali_ray.backend import library, threads\n"
        "assert not threads.openmp_loaded()\n"
        f"assert threads.apply_wait({asked!r}, n_threads=2) == {asked!r}\n"
        "library.load()\n"
        "assert threads.openmp_loaded()\n"
    )
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ours | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = {spins}" in done.stderr


# -- long texts, which are tokenised in parts

QWEN = Path(__file__).parents[3] / "shared" / "data" / "ggml-vocab-qwen2.gguf"


@pytest.fixture(scope="module", params=["tiny", pytest.param("qwen2", marks=pytest.mark.thorough)])
def cut(request, tiny):
    """Return a vocabulary of which every text counts as long."""
    path = {"tiny": tiny, "qwen2": QWEN}[request.param]
    if not path.exists():
        pytest.skip("shared/data/ggml-vocab-qwen2.gguf is not beside this checkout")
    vocab = Vocab.load(path)
    yield vocab
    vocab.close()


def pieces_of(vocab):
    """Texts made of special tokens, of halves of them, and of what stands between them."""
    specials = [text.decode() for text in vocab._specials.all]
    halves = [text[: len(text) // 2] for text in specials] + [text[len(text) // 2 :] for text in specials]
    return st.lists(st.sampled_from(specials + halves + ["a", " ", "\n", "é", "hello "]), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), parse_special=st.booleans(), add_special=st.booleans(), per_part=st.integers(1, 5))
def test_a_text_in_parts_has_the_tokens_of_the_whole(
    cut, monkeypatch, data, parse_special, add_special, per_part
):
    text = "".join(data.draw(pieces_of(cut)))
    how = {"parse_special": parse_special, "add_special": add_special}
    whole = cut.tokenize(text, **how)  # short: llama.cpp sees all of it at once
    monkeypatch.setattr("cobali_ray.backend.vocab._SHORT_BYTES", -1)
    monkeypatch.setattr("cobali_ray.backend.vocab.MAX_PER_PART", per_part)
    assert cut.tokenize(text, **how) == whole
    monkeypatch.undo()


def test_special_tokens_take_time_in_proportion_to_their_number(cut):
    """The square of it took 140 times as long for 12 times as many."""
    special = cut._specials.all[0].decode()

    def seconds(n):
        text = special * n
        times = []
        for _ in range(3):
            started = time.process_time()  # which others on this machine do not lengthen
            assert len(cut.tokenize(text)) >= n
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(48_000) < 40 * seconds(4_000)


def test_tokenising_ends_when_there_are_too_many_or_nobody_waits(cut):
    special = cut._specials.all[0].decode()
    text = (special + "word ") * 4_000
    n = len(cut.tokenize(text))
    with pytest.raises(TooManyTokensError) as caught:
        cut.tokenize(text, n_most=100)
    assert 100 < caught.value.n_least <= n
    with pytest.raises(TooManyTokensError):
        cut.tokenize(text, n_most=n - 1)
    assert len(cut.tokenize(text, n_most=n)) == n
    asked = iter([False, True])
    assert 0 < len(cut.tokenize(text, is_cancelled=lambda: next(asked))) < n


def test_a_text_too_long_for_any_token_is_refused_unread(cut, monkeypatch):
    text = "word " * 100_000
    monkeypatch.setattr(cut, "_tokenize", None)
    with pytest.raises(TooManyTokensError) as caught:
        cut.tokenize(text, n_most=100)
    monkeypatch.undo()
    assert 100 < caught.value.n_least <= len(cut.tokenize(text))


def test_a_vocabulary_says_where_text_is_missing(tiny, tmp_path):
    names = ("pre", "suf", "mid", "rep", "sep")
    keys = {f"tokenizer.ggml.fim_{name}_token_id": 10 + i for i, name in enumerate(names)}
    vocab = Vocab.load(with_keys(tiny, tmp_path / "fim.gguf", keys))
    assert vocab.infill[:5] == (10, 11, 12, 13, 14)
    vocab.close()
    assert Vocab.load(tiny).infill is None
