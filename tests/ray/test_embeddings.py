"""The official client against a running server: vectors of a BERT, and of a model that also generates."""

import asyncio

import numpy as np
import openai as sdk
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.ray]

bert = pytest.mark.parametrize("server", ["bert"], indirect=True)
tiny = pytest.mark.parametrize("server", ["tiny"], indirect=True)
TEXTS = [f"the moon {number} of paris and what is new" for number in range(2048)]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def vectors(openai, texts, **fields):
    (model,) = (await openai.models.list()).data
    made = await openai.embeddings.create(model=model.id, input=texts, **fields)
    assert [item.index for item in made.data] == list(range(len(made.data)))
    return np.array([item.embedding for item in made.data])


@bert
async def test_vectors_of_a_bert(openai):
    (model,) = (await openai.models.list()).data
    assert model.capabilities == ["embedding", "rerank"]
    found = await vectors(openai, TEXTS)
    assert found.shape == (2048, 64)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    some = range(0, 2048, 300)
    alone = await asyncio.gather(
        *(vectors(openai, TEXTS[number], encoding_format="float") for number in some)
    )
    assert np.abs(found[list(some)] - np.concatenate(alone)).max() < 1e-5


@bert
async def test_a_bert_does_not_chat(openai, http):
    with pytest.raises(sdk.BadRequestError) as told:
        await openai.chat.completions.create(
            model="synthetic-bert", messages=[{"role": "user", "content": "hi"}]
        )
    assert told.value.code == "model_not_supported"
    body = {"query": TEXTS[3], "documents": ["dogs", TEXTS[3], "cats"], "top_n": 1}
    answer = await http.post("/v1/rerank", json=body)
    assert answer.json()["results"] == [{"index": 1, "relevance_score": pytest.approx(1, abs=1e-4)}]


@tiny
async def test_texts_beside_streams(openai, http):
    (model,) = (await openai.models.list()).data

    async def answer():
        made = await openai.completions.create(
            model=model.id, prompt="say", max_tokens=60, temperature=0, extra_body={"ignore_eos": True}
        )
        return made.choices[0].text

    before = await answer()
    *answers, found = await asyncio.gather(answer(), answer(), vectors(openai, TEXTS[:64], dimensions=16))
    assert answers == [before, before]
    assert found.shape == (64, 16)
    assert np.abs((await vectors(openai, TEXTS[7], dimensions=16))[0] - found[7]).max() < 1e-5
    metrics = (await http.get("/metrics")).text
    assert 'cobali_embedded_texts_total{engine="0"} 65.0' in metrics
