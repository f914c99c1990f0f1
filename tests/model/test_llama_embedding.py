"""Vectors and scores of real llama.cpp: those of the model, in any company and in pieces, and no abort."""

from math import inf

import numpy as np
import pytest
from numpy_bert import NumpyBert

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.embedder import FLASH_TOGETHER, MAX_TEXTS, PLAIN_TOGETHER, LlamaEmbedder
from cobali_ray.backend.embedding_only import EmbeddingBackend, open_llama
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.vocab import Vocab
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.queue.text_passes import EmbeddingJob, TextPasses
from cobali_ray.core.request.embedding import EmbeddingRequest, TextPiece
from cobali_ray.core.request.sequence import Account
from cobali_ray.engine.opening import open_engine
from cobali_ray.errors import BackendError, BadRequestError, ConfigError, TooManyTokensError
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings

pytestmark = pytest.mark.model

TEXTS = ["hello world", "The cat of Paris looks at the moon.", "dogs", "not what it was!", "x" * 40]


@pytest.fixture(scope="session")
def bert():
    return resolve("builtin:synthetic-bert")


@pytest.fixture(scope="session")
def rank():
    return resolve("builtin:synthetic-rank")


@pytest.fixture
def open_model():
    opened = []

    def open_one(path, **changes):
        config = {"n_slots": 4, "n_ctx": 1024, "n_batch": 256, "n_threads": 1}
        opened.append(open_llama(LlamaConfig(path=path, **config | changes)))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


def unit(row):
    return row / np.linalg.norm(row)


def whole(request, number):
    return TextPiece(request, number, 0, request.text(number), last=True)


def vectors(embedder, request, n_most=1 << 30):
    """Return the vector of each text, packed as the engine packs them."""
    texts, found = TextPasses(embedder.kind), {}
    texts.times.most = lambda _: n_most
    texts.queue.push(job := EmbeddingJob(request, Account("", 1.0), 0.0), 0.0)
    while job.n_texts and (pieces := texts.begin(inf, 0.0)[0]):
        rows = embedder.embed(pieces)
        found |= {p.text_id: unit(row) for p, row in zip(pieces, rows, strict=True) if p.last}
        for piece in pieces:
            texts.computed(piece, job)
    return [found[number] for number in range(len(request.ends))]


def random_texts(n, *, n_vocab, longest, seed=0, **fields):
    rng = np.random.default_rng(seed)
    texts = [rng.integers(5, n_vocab, rng.integers(1, longest)).tolist() for _ in range(n)]
    return EmbeddingRequest.of(texts, **({"request_id": "a"} | fields))


def test_vectors_are_those_of_bert(open_model, bert):
    backend, oracle = open_model(bert), NumpyBert(bert)
    request = EmbeddingRequest.of([backend.words.tokenize(text) for text in TEXTS], request_id="a")
    for number, row in enumerate(vectors(backend.embedder, request)):
        # llama.cpp's GELU is a table of half precision.
        assert np.abs(row - unit(oracle.mean(request.text(number)))).max() < 2e-3
    assert np.abs(unit(oracle.mean(request.text(0))) - unit(oracle.mean(request.text(1)))).max() > 0.05


def test_scores_are_those_of_berts_head(open_model, rank):
    backend, oracle = open_model(rank), NumpyBert(rank)
    pairs = [backend.words.pair("the moon", text) for text in TEXTS]
    request = EmbeddingRequest.of(pairs, request_id="a")
    rows = backend.embedder.embed([whole(request, number) for number in range(len(TEXTS))])
    expected = [oracle.score(pair) for pair in pairs]
    assert [float(row[0]) for row in rows] == pytest.approx(expected, abs=5e-3)
    assert max(expected) - min(expected) > 0.05
    assert backend.embedder.kind.pooling == "rank"


def test_a_pair_has_the_tokens_that_its_model_wants(open_model, rank):
    words = open_model(rank).words
    assert isinstance(words, Vocab)
    left, right = words.tokenize("moon", add_special=False), words.tokenize("sun", add_special=False)
    assert words.pair("moon", "sun") == [2, *left, 3, 3, *right, 3]
    assert 3 not in words.pair("moon", "[SEP]")[len(left) + 3 : -1], "what stands in a document is text"


def test_special_tokens_by_the_thousand_are_refused_and_not_looked_for(open_model, bert):
    words = open_model(bert).words
    with pytest.raises(BadRequestError, match="special tokens"):
        words.tokenize("[SEP]" * 500_000)  # else minutes
    with pytest.raises(TooManyTokensError):
        words.tokenize("[SEP]" * 500_000, n_most=512)
    assert words.tokenize("a [SEP]" * 1300)[-2:] == [3, 3]


def test_alone_and_in_company_a_text_has_one_vector(open_model, bert):
    backend = open_model(bert)
    request = random_texts(80, n_vocab=backend.n_vocab, longest=50)
    together = vectors(backend.embedder, request)
    alone = [unit(backend.embedder.embed([whole(request, number)])[0]) for number in range(80)]
    assert np.abs(np.array(together) - np.array(alone)).max() < 1e-5


@pytest.mark.parametrize("n_most", [pytest.param(1 << 30, marks=pytest.mark.thorough), 37])
def test_a_second_context_pools_the_last_token_also_in_pieces(open_model, tiny, n_most):
    backend = open_model(tiny, pooling="last")
    request = random_texts(6, n_vocab=4000, longest=700, seed=1)
    together = vectors(backend.embedder, request, n_most)
    for number, row in enumerate(together):
        text = request.text(number)
        one = EmbeddingRequest.of([text], request_id="one")
        assert np.abs(row - vectors(backend.embedder, one)[0]).max() < 1e-5
    assert np.abs(together[0] - together[1]).max() > 0.01


def test_a_text_left_in_the_middle_leaves_nothing_behind(open_model, tiny):
    embedder = open_model(tiny, pooling="last").embedder
    request = random_texts(2, n_vocab=4000, longest=700, seed=2)
    long = EmbeddingRequest.of([[7] * 600], request_id="long")
    before = vectors(embedder, request)
    embedder.embed([TextPiece(long, 0, 0, long.text(0)[:100], last=False)])
    assert np.abs(np.array(vectors(embedder, request)) - np.array(before)).max() < 1e-6


def test_texts_beside_one_in_pieces_leave_nothing_behind_either(open_model, tiny):
    embedder = open_model(tiny, pooling="last").embedder
    request = random_texts(2, n_vocab=4000, longest=30, seed=3)
    long = EmbeddingRequest.of([list(range(5, 185))], request_id="long")
    alone = [*vectors(embedder, request), *vectors(embedder, long)]
    tokens = long.text(0)
    embedder.embed([TextPiece(long, 0, 0, tokens[:60], last=False)])
    first = embedder.embed([TextPiece(long, 0, 60, tokens[60:120], last=False), whole(request, 0)])
    second = embedder.embed([TextPiece(long, 0, 120, tokens[120:], last=True), whole(request, 1)])
    found = [unit(row) for row in (first[1], second[1], second[0])]
    assert np.abs(np.array(found) - np.array(alone)).max() < 1e-5


def test_generating_is_the_same_beside_it(open_tiny, tiny):
    assert tiny
    plain, both = open_tiny(), open_tiny(pooling="last")
    assert (plain.embedder, both.generates) == (None, True)
    request = random_texts(3, n_vocab=4000, longest=40)
    both.embedder.embed([whole(request, number) for number in range(3)])
    assert both.n_cells == plain.n_cells
    assert isinstance(both, LlamaBackend)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(lambda r: [whole(r, 0)] * 300, id="too many texts"),
        pytest.param(lambda r: [whole(r, 1)], id="too long"),
        pytest.param(
            lambda r: [TextPiece(r, 0, 4, r.text(0)[4:], last=True)], id="goes on and nothing is there"
        ),
        pytest.param(
            lambda r: [TextPiece(r, 0, 0, r.text(0)[:4], last=False)], id="half of what cannot be cut"
        ),
    ],
)
def test_what_would_abort_is_refused(open_model, bert, pieces):
    embedder = open_model(bert).embedder
    request = EmbeddingRequest.of([[7] * 8, [7] * 513], request_id="a")
    with pytest.raises(BackendError):
        embedder.embed(pieces(request))
    assert np.isfinite(embedder.embed([whole(request, 0)])[0]).all()


def test_what_the_file_says_decides(open_model, bert, tiny):
    backend = open_model(bert)
    assert isinstance(backend, EmbeddingBackend)
    assert not backend.generates
    assert backend.embedder.kind == (64, 512, 512, PLAIN_TOGETHER, MAX_TEXTS, "mean", False, False)
    cut = open_model(bert, n_ctx=100).embedder.kind
    assert (cut.n_most, cut.n_batch) == (100, PLAIN_TOGETHER)
    assert open_model(bert, flash_attn="on").embedder.kind.n_together == FLASH_TOGETHER
    assert open_model(bert, pooling="cls").embedder.kind.pooling == "cls"
    assert isinstance(open_model(tiny), LlamaBackend)


def test_adapters_of_a_model_that_only_embeds_stop_the_start(open_model, bert):
    with pytest.raises(ConfigError, match="adapters"):
        open_model(bert, adapters=(Adapter("law", "1f 1.0", "/law.gguf", 1.0),))


def test_no_room_names_the_setting(open_model, tiny, monkeypatch):
    backend = open_model(tiny)
    config = LlamaConfig(path=tiny, n_slots=1, n_ctx=512, n_batch=64, n_threads=1)
    monkeypatch.setattr("cobali_ray.backend.embedder.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(ConfigError, match="pooling"):
        LlamaEmbedder(backend._model, pooling="last", config=config)


def test_the_whole_engine_on_a_bert(bert):
    events = []
    engine = open_engine(EngineSettings(model="builtin:synthetic-bert"), events.extend, path=bert)
    try:
        assert engine.limits.n_slots == 1, "nothing is shown of slots that nobody can use"
        request = random_texts(300, n_vocab=engine.backend.n_vocab, longest=30)
        engine.embed(request)
        ticks = []
        while engine.has_work:
            ticks.append(engine.tick())
    finally:
        engine.close()
    assert events[-1][1].error is None
    assert sum(t.n_texts for t in ticks) == 300
    assert all(t.n_embedded <= PLAIN_TOGETHER for t in ticks)
