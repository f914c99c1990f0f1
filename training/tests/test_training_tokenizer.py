"""The tokenizer that the corpus gives, and how conversations become ids."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from training.corpus.build import training_examples
from training.corpus.example import Turn
from training.dataset import LONGEST, Dataset, encode, padded, plan
from training.tokenizer import Encoder, of_vocabulary, own_texts, train, vocabulary

pytestmark = pytest.mark.thorough  # only who trains needs it

TEXTS = ("LEMON and 1234 + 56", "TTFT of JSON", "\n- a\n- b", "  two  spaces ", "Zażółć 你好 👩‍💻")


def trained():
    texts = [turn.text for example in training_examples(1000, 1) for turn in example.turns]
    return train(texts + own_texts(), 1500)


@pytest.fixture(scope="module")
def tokenizer():
    return trained()


def test_digits_and_capitals_in_a_row_stay_single(tokenizer):
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("17 lemons, LEMON").ids]
    assert pieces[:2] == ["1", "7"]
    assert pieces[-4:] == list("EMON")
    assert not [token for token in vocabulary(tokenizer).tokens if sum(map(str.isdigit, token)) > 1]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_vocabulary_is_the_whole_tokenizer(tokenizer):
    again = of_vocabulary(vocabulary(tokenizer))
    assert vocabulary(again) == vocabulary(tokenizer)
    chat = "<|im_start|>user\nwhat's 17+25? LEMON<|im_end|>"
    assert [again.encode(text).ids for text in (*TEXTS, chat)] == [
        tokenizer.encode(text).ids for text in (*TEXTS, chat)
    ]


def test_training_it_twice_gives_the_same(tokenizer):
    assert trained().to_str() == tokenizer.to_str()


def test_pieces_of_a_conversation_are_encoded_like_the_whole(tokenizer):
    encoder = Encoder(tokenizer)
    turns = (Turn("system", "Be brief."), Turn("user", "Spell LEMON\n- now"), Turn("assistant", "L-E-M-O-N"))
    (encoded,) = encoder.batch([turns])
    text = "".join(f"<|im_start|>{turn.role}\n{turn.text}<|im_end|>\n" for turn in turns)
    assert encoded.ids == tokenizer.encode(text).ids
    prompt = text.partition("assistant\n")[0] + "assistant\n"
    assert encoder.prompt(turns[:2]) == tokenizer.encode(prompt).ids


def test_only_what_the_assistant_says_is_learnt(tokenizer):
    encoder = Encoder(tokenizer)
    (encoded,) = encoder.batch(
        [(Turn("user", "hi"), Turn("assistant", "Hello"), Turn("user", "x"), Turn("assistant", "y"))]
    )
    said = [i for i, spoken in zip(encoded.ids, encoded.spoken, strict=True) if spoken]
    assert tokenizer.decode(said, skip_special_tokens=False) == "Hello<|im_end|>y<|im_end|>"


@pytest.fixture(scope="module")
def data(tokenizer):
    return encode(
        training_examples(1500, 2), Encoder(tokenizer), Random(3), share_long=0.02, progress=lambda _: None
    )


def test_some_rows_are_long_conversations(data):
    assert 300 < data.lengths.max() <= LONGEST
    assert np.median(data.lengths) < 100


def test_tools_stay_at_the_beginning_of_their_own_conversation(tokenizer):
    some = list(training_examples(1500, 2))
    rows = encode(some, Encoder(tokenizer), Random(3), share_long=0.03, progress=lambda _: None)
    texts = [
        tokenizer.decode(rows.tokens[start:end].tolist(), skip_special_tokens=False)
        for start, end in pairwise(rows.starts)
    ]
    calling = [text for text in texts if "<tool_call>\n" in text.partition("<|im_end|>")[2]]
    assert len(calling) > 20
    assert all("Call these tools" in text.partition("<|im_end|>")[0] for text in calling)
    assert all(text.count("<|im_start|>") < 20 for text in calling)


def test_the_plan_uses_every_row_once(data):
    steps = plan(data.lengths, 1, tokens_per_pass=2048, passes_per_step=3)
    rows = np.concatenate([indices for step in steps for indices in step])
    assert sorted(rows) == list(range(len(data.lengths)))
    sizes = [len(indices) * padded(data.lengths[indices].max()) for step in steps for indices in step]
    assert all(
        size <= 2048 or len(indices) == 1
        for size, indices in zip(sizes, (i for s in steps for i in s), strict=True)
    )
    assert sum(sizes) < 1.15 * len(data.tokens), "little is padding"


def test_the_plan_is_the_seed_s(data):
    one, two, other = (
        [i.tolist() for s in plan(data.lengths, seed, tokens_per_pass=2048, passes_per_step=3) for i in s]
        for seed in (1, 1, 2)
    )
    assert one == two
    assert one != other


def test_rows_are_padded_and_short_answers_weigh_more(data):
    indices = np.arange(20)
    tokens, weights = data.rows(indices)
    assert tokens.shape == weights.shape == (20, padded(data.lengths[:20].max()))
    n_spoken = (weights > 0).sum(1)
    assert (n_spoken > 0).all()
    assert np.allclose(weights.sum(1), np.sqrt(n_spoken))


def test_a_dataset_comes_back_from_disk(data, tmp_path):
    data.save(tmp_path / "corpus.npz")
    again = Dataset.load(tmp_path / "corpus.npz")
    assert (again.tokens == data.tokens).all()
    assert (again.starts == data.starts).all()
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.npz"]
