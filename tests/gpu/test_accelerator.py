"""All that is served, with every layer on devices: the answers of llama.cpp alone on the CPU."""

import json
import random
from array import array
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from jsonschema import validate
from numpy_bert import NumpyBert
from test_archs import CONFIGS, FIRST, Served, archs, converse, differences, drawn, promised
from test_grammar import SCHEMA
from test_llama_adapters import ask
from test_llama_device import candidate_requests
from test_llama_embedding import TEXTS, unit, vectors
from test_llama_engine import Run

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.embedding_only import open_llama
from cobali_ray.backend.endpoint import is_endpoint
from cobali_ray.backend.grammar import check
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, open_backend, worker_cache
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings
from cobali_workloads.offline import run_offline

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

GPU_NOISE = 0.2
"""Of logprobs, where other kernels than the CPU's compute them; a cell too few shows as 0.4 at least."""


@pytest.fixture
def compared(alone_on, devices):
    """Open llama.cpp alone, with what kernels of a GPU may differ by."""

    def open_alone(path, **settings):
        alone = alone_on(path, settings.get("type_k", "f16"), settings.get("flash_attn", "auto"))
        if not all(map(is_endpoint, devices)):
            alone.noise = max(alone.noise, GPU_NOISE)
        return alone

    return open_alone


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("family", archs.FAMILIES)
def test_conversations_are_those_of_the_cpu(models, compared, devices, tmp_path, family, config):
    settings = CONFIGS[config]
    reuses, keeps, _ = promised(archs.FAMILIES[family].arch, unified="kv" in settings)
    alone = compared(models(family), **settings)
    with closing(Served(models(family), tmp_path, devices=devices, **settings)) as served:
        assert served.engine.backend.overlaps
        converse(served)
        assert differences(served, alone) == {}
        assert served.total("n_preempted") > 0
        if reuses == "at states":
            assert served.calls["restore_state"] > 0
        else:
            assert (served.calls["copy"] > 1, served.n_cached > 600) == (reuses == "yes", reuses == "yes")
        assert keeps != "yes" or served.total("n_host_hits") > 2
    if keeps == "yes":  # on disk, too
        with closing(Served(models(family), tmp_path, devices=devices, **settings)) as again:
            again.ask("first", FIRST, max_tokens=24)
            again.ask("edited", FIRST[:90] + drawn(2, 30))
            assert differences(again, alone) == {}
            assert again.total("n_disk_hits") > 0


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"n_gpu_layers": 1}, id="one-layer"),
        pytest.param({"n_gpu_layers": 2}, id="two-layers"),
        pytest.param({"split_mode": "none"}, id="on-one-alone"),
        pytest.param({"split_mode": "tensor"}, id="tensor-parallel"),
        pytest.param({"tensor_split": (1.0, 3.0)}, id="unequal"),
        pytest.param({"tensor_split": (0.0, 1.0)}, id="all-on-the-second"),
    ],
)
def test_however_a_model_is_split_answers_are_the_same(models, compared, devices, tmp_path, how):
    if "tensor_split" in how and len(devices) != 2:
        pytest.skip("for two devices")
    with closing(Served(models("dense"), tmp_path, devices=devices, **how)) as served:
        assert served.engine.backend.overlaps == ("n_gpu_layers" not in how)
        converse(served)
        assert differences(served, compared(models("dense"))) == {}


@pytest.mark.parametrize("kv", ["split", "unified"])
def test_what_the_device_picks_is_what_the_host_draws(tiny, devices, kv):
    where = {"devices": devices, "n_gpu_layers": -1, "worker_cache": worker_cache()}
    asked = {"n_slots": 6, "chunk": 64, "budget": 72, "flash_attn": "on", "arrive_every": 2} | where
    runs = [
        Run(tiny, candidate_requests(20), device_sampling=which, unified=kv == "unified", **asked)
        for which in ("on", "off")
    ]
    assert runs[0].answers == runs[1].answers
    assert runs[0].ends() == runs[1].ends()


def test_a_grammar_holds(devices):
    settings = EngineSettings(
        model="builtin:tiny", n_slots=4, n_ctx=512, n_threads=1, device_sampling="on", devices=devices
    )
    backend = open_backend(settings, resolve("builtin:tiny"))
    prompt = tuple(backend.words.tokenize("Weather?"))
    grammar = check("p", "json_schema", json.dumps(SCHEMA), strict=True).grammar
    requests = [
        Request(
            request_id=str(i),
            prompt=prompt,
            max_tokens=300,
            sampling=SamplingParams(seed=i, temperature=1.0),
            grammar=grammar,
        )
        for i in range(8)
    ]
    report = run_offline(partial(engine_on, backend, settings), requests)
    backend.close()
    assert not report.failed
    finished = [i for i, one in report.requests.items() if one.n_output < 300]
    assert finished
    for i in finished:
        validate(json.loads(report.texts[i]), SCHEMA)


def test_an_adapter_changes_what_it_changes_on_the_cpu(tiny, adapters, devices):
    tokens, found = ask("r", "", 50).prompt, []
    for where in ({}, {"devices": devices, "n_gpu_layers": -1, "worker_cache": worker_cache()}):
        backend = open_llama(
            LlamaConfig(
                path=tiny, n_slots=2, n_ctx=256, n_batch=256, n_threads=1, flash_attn="on",
                adapters=tuple(adapters.values()), **where,
            )
        )  # fmt: skip
        batch = TickBatch(backend.n_batch)
        for name in ("one", "two", "none"):
            backend.clear()
            backend.use(adapters[name].key)
            batch.fill((Span(0, 0, 50, sample=True),), [array("i", tokens)])
            backend.forward(batch)
            found.append(backend._read_logits(1)[0].copy())
        backend.close()
    for cpu, device in zip(found[:3], found[3:], strict=True):
        assert np.abs(cpu - device).max() < 0.05 * np.abs(cpu).max()
    assert not np.allclose(found[3], found[4])


def test_vectors_are_those_of_bert(devices):
    path = resolve("builtin:synthetic-bert")
    backend = open_llama(
        LlamaConfig(
            path=path, n_slots=4, n_ctx=1024, n_batch=256, n_threads=1, devices=devices, n_gpu_layers=-1,
            worker_cache=worker_cache(),
        )
    )  # fmt: skip
    oracle = NumpyBert(path)
    request = EmbeddingRequest.of([backend.words.tokenize(text) for text in TEXTS], request_id="a")
    for number, row in enumerate(vectors(backend.embedder, request)):
        assert np.abs(row - unit(oracle.mean(request.text(number)))).max() < 2e-3
    backend.close()


def test_two_engines_take_turns_on_a_device(models, devices, tmp_path):
    """A model that is unloaded leaves the device to the next."""
    for i in range(3):
        with closing(Served(models("dense"), tmp_path / str(i), devices=devices)) as served:
            prompt = tuple(random.Random(i).randrange(100) for _ in range(40))
            assert len(served.ask("a", prompt)) == 56
