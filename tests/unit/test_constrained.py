"""Answers under a grammar: valid, drawn as the model would, ended when complete, refused when unusable."""

import json
import os
import queue
import random
import sys
import threading

import numpy as np
import pytest
from answers import OnEngine, allowed

from cobali_ray.backend import grammar as grammar_module
from cobali_ray.backend.grammar import MAX_CHARS, Grammars, check
from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.sampling import RowSampler, restrict, sample_rows
from cobali_ray.backend.scripted import END_TOKEN, N_VOCAB, ByteVocab, ScriptedBackend
from cobali_ray.core.request.events import Delta, End
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Grammar, Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.errors import InvalidParameterError
from cobali_ray.testing import FakeClock

HOT = SamplingParams(temperature=1.0)
END = frozenset({END_TOKEN})
WAIT_S = 60


def byte_grammars():
    return Grammars(
        n_vocab=N_VOCAB,
        pieces=Pieces(lambda token: bytes([token]) if token < 256 else b"", lambda token: "", END),
        tokenize=ByteVocab().tokenize,
    )


GRAMMARS = byte_grammars()


def grammar(kind, text, **how):
    text = text if isinstance(text, str) else json.dumps(text)
    return check("p", kind, text, **how).grammar


def row(params=HOT, *, asked, seed=0, end=END):
    made = RowSampler(params, (), end_tokens=end, n_vocab=N_VOCAB, entropy=lambda: seed)
    made.matcher = GRAMMARS.matcher(asked)
    return made


class Setup(OnEngine):
    """An engine over the scripted backend."""

    def __init__(self, **scripted):
        super().__init__(ScriptedBackend(n_slots=4, n_ctx_slot=1024, n_batch=64, **scripted))

    def submit(self, request_id, asked=None, prompt=b"hi", max_tokens=500, **kwargs):
        return self.engine.submit(
            Request(
                request_id=request_id, prompt=tuple(prompt), max_tokens=max_tokens, grammar=asked, **kwargs
            )
        )


# -- validity -------------------------------------------------------------------------------------------

SPELT = [
    pytest.param({"properties": {"a": {"type": "integer"}}}, r'{"\u0061":', id="letter"),
    pytest.param({"properties": {"a\n": {"type": "integer"}}}, r'{"a\u000a":', id="control"),
    pytest.param({"patternProperties": {".*": {"type": "integer"}}}, r'{"\u93d2":', id="pattern"),
    pytest.param({"properties": {"a/": {"type": "integer"}}}, r'{"a\/":', id="slash"),
]


@pytest.mark.parametrize(("schema", "key"), SPELT)
def test_no_key_is_spelt_so_that_its_schema_does_not_hold(schema, key):
    matcher = GRAMMARS.matcher(grammar("json_schema", {"type": "object", **schema}, strict=True))
    taken = []
    for token in key.encode():
        if not matcher.allows(token):
            break
        matcher.take(token)
        taken.append(token)
    assert bytes(taken).endswith(b"\\"), "up to where it would be spelt otherwise"


def test_white_space_does_not_go_on_for_ever():
    """A model that would write nothing else comes to an end all the same."""
    asked = grammar("json_schema", {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2})
    made, values = row(GREEDY, asked=asked), logits({" ": 9.0, "\n": 8.0, "\t": 7.0})
    taken = []
    while not made.matcher.complete:
        taken += sample_rows(values.copy(), [made]).tokens
        assert len(taken) < 200
    assert json.loads(bytes(taken)) == [1, 1]


OTHERS = [
    pytest.param("regex", "[a-c]{3}x?", r"[a-c]{3}x?", id="regex"),
    pytest.param("choice", ["yes", "no", 'may"be'], r'yes|no|may"be', id="choice"),
    pytest.param("grammar", 'root ::= "<" [0-9]+ ">" | "none"', r"<[0-9]+>|none", id="gbnf"),
    pytest.param("grammar", 'start: "a" B "c"\nB: /[xy]+/', r"a[xy]+c", id="lark"),
]


@pytest.mark.parametrize(("kind", "text", "pattern"), OTHERS)
def test_other_grammars_hold(kind, text, pattern):
    import re

    s = Setup(end_probability=0.02)
    for i in range(8):
        s.submit(f"r{i}", grammar(kind, text), prompt=bytes([i]), sampling=HOT, max_tokens=300)
    s.run()
    finished = [s.answer(f"r{i}") for i in range(8)]
    assert all(re.fullmatch(pattern, text) for text, end in finished if end.finish_reason == "stop")
    assert any(end.finish_reason == "stop" for _, end in finished)


# -- the draw -------------------------------------------------------------------------------------------


def logits(values):
    made = np.full((1, N_VOCAB), -20.0, np.float32)
    for char, value in values.items():
        made[0, ord(char)] = value
    return made


@pytest.mark.parametrize("params", [HOT, SamplingParams(top_k=200)])
def test_the_draw_is_the_models_given_what_is_allowed(params):
    """Over many seeds: the likeliest token is refused, the three allowed ones keep their proportions."""
    asked, n, n_draws = grammar("regex", "[abc]{20}"), 100, 20
    values = {"x": 1.0, "a": 1.0, "b": 0.0, "c": -1.0}
    rows = []
    for seed in range(n):
        made = RowSampler(params, (), end_tokens=END, n_vocab=N_VOCAB, entropy=lambda seed=seed: seed)
        made.matcher = GRAMMARS.matcher(asked)
        rows.append(made)
    tokens = [
        t for _ in range(n_draws) for t in sample_rows(np.repeat(logits(values), n, axis=0), rows).tokens
    ]
    weights = np.exp([1.0, 0.0, -1.0])
    shares = np.array([tokens.count(ord(c)) / len(tokens) for c in "abc"])
    assert shares.sum() == 1
    assert np.abs(shares - weights / weights.sum()).max() < 0.04


def test_a_redraw_takes_a_number_of_its_own_and_seeds_repeat():
    """Drawn again with the number that was refused, nothing but the last of the allowed would come."""
    asked = grammar("regex", "[ab]{9}")
    values = logits({"a": 0.0, "b": 0.0, "z": 3.0})

    def answer(seed):
        made = row(SamplingParams(seed=seed), asked=asked)
        return [sample_rows(values.copy(), [made]).tokens[0] for _ in range(9)]

    assert answer(7) == answer(7)
    assert len({tuple(answer(seed)) for seed in range(8)}) > 4
    assert len({token for seed in range(8) for token in answer(seed)}) == 2


def test_what_is_allowed_is_drawn_as_without_a_grammar():
    free = RowSampler(SamplingParams(seed=3), (), end_tokens=END, n_vocab=N_VOCAB)
    bound = row(SamplingParams(seed=3), asked=grammar("regex", "(.|\n)*"))
    printable = np.full((1, N_VOCAB), -1e4, np.float32)
    printable[0, 32:127] = np.random.default_rng(0).normal(size=95)
    drawn = [[sample_rows(printable.copy(), [one]).tokens[0] for _ in range(40)] for one in (free, bound)]
    assert drawn[0] == drawn[1]


def test_logprobs_are_the_models_own():
    values = logits({"a": 0.0, "z": 3.0})
    made = row(SamplingParams(temperature=0, n_logprobs=1), asked=grammar("regex", "a"))
    sampled = sample_rows(values.copy(), [made])
    total = np.log(np.exp(values[0].astype(np.float64)).sum())
    assert sampled.tokens == [ord("a")]
    assert sampled.logprobs[0].logprob == pytest.approx(0.0 - total, abs=1e-5)
    assert sampled.logprobs[0].top[0][0] == ord("z")


def test_bias_and_penalties_weigh_among_what_is_allowed():
    bias = SamplingParams(temperature=0, logit_bias=((ord("b"), 5.0),))
    assert sample_rows(
        logits({"a": 3, "b": 0, "z": 9}), [row(bias, asked=grammar("regex", "[ab]"))]
    ).tokens == [ord("b")]
    made = row(SamplingParams(temperature=0, frequency_penalty=2), asked=grammar("regex", "[ab]{2}"))
    values = logits({"a": 1, "b": 0, "z": 9})
    assert [sample_rows(values.copy(), [made]).tokens[0] for _ in range(2)] == [ord("a"), ord("b")]


# -- where an answer ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"min_tokens": 100}, {"ignore_eos": True}])
def test_a_complete_answer_ends_whatever_was_asked_of_ends(params):
    s = Setup()
    sampling = SamplingParams(temperature=0, **params)
    for request_id, asked in {
        "closed": grammar("choice", ["yes", "no"]),
        "late": grammar("grammar", 'start: "a" | "ab"'),
        "open": grammar("regex", "[a-c]{2,5}"),
    }.items():
        s.submit(request_id, asked, sampling=sampling, max_tokens=200)
    s.run()
    texts = {name: s.answer(name) for name in ("closed", "late", "open")}
    assert {end.finish_reason for _, end in texts.values()} == {"stop"}
    assert texts["closed"][0] in {"yes", "no"}
    assert texts["closed"][1].stats.n_output == len(texts["closed"][0]), "no pass for an end nobody needs"
    assert texts["late"][0] in {"a", "ab"}
    assert 2 <= len(texts["open"][0]) <= 5


def test_a_banned_end_is_taken_where_nothing_else_may_follow():
    """`complete` is known late for some grammars: then an end is all that is allowed."""
    made = row(SamplingParams(temperature=0, ignore_eos=True), asked=grammar("regex", "a"))
    made.matcher.take(ord("a"))
    sampled = sample_rows(logits({"a": 1.0}), [made])
    assert (sampled.tokens, sampled.failed) == ([END_TOKEN], {})


def test_fields_that_leave_nothing_of_a_grammar_are_the_client_s_fault():
    params = SamplingParams(temperature=0, allowed_token_ids=(ord("x"),))
    sampled = sample_rows(logits({"x": 1.0}), [row(params, asked=grammar("regex", "[0-9]+"))])
    assert sampled.failed[0].path == ("allowed_token_ids",)
    assert sampled.failed[0].status == 400


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_how_far_a_token_is_from_the_likeliest_is_seen_among_those_that_the_grammar_allows(temperature):
    values = logits({"S": 9.0, "y": 3.0, "n": 2.9, "a": 0.1})
    params = SamplingParams(temperature=temperature, top_n_sigma=1.0, n_logprobs=1)
    sampled = sample_rows(values, [row(params, asked=grammar("regex", "yes|no"))])
    assert sampled.failed == {}
    assert sampled.tokens[0] in {ord("y"), ord("n")}
    drawn = {ord("y"): 3.0, ord("n"): 2.9}[sampled.tokens[0]]
    assert sampled.logprobs[0].logprob == pytest.approx(drawn - 9.0, abs=0.02), "by what the model gave"


def test_an_end_token_is_refused_before_the_answer_is_whole():
    values = logits({"a": 0.0})
    values[0, END_TOKEN] = 50.0
    made = row(GREEDY, asked=grammar("regex", "aa"))
    first = sample_rows(values.copy(), [made])
    assert (first.tokens, first.complete) == ([ord("a")], [])
    second = sample_rows(values.copy(), [made])
    assert (second.tokens, second.complete) == ([ord("a")], [0])


def test_every_end_token_is_an_end():
    two = Grammars(
        n_vocab=N_VOCAB,
        pieces=Pieces(lambda token: bytes([token % 256]), "<{}>".format, frozenset({256, 257})),
        tokenize=ByteVocab().tokenize,
    )
    matcher = two.matcher(grammar("regex", "a+"))
    assert not matcher.allows(256)
    matcher.take(ord("a"))
    assert [matcher.allows(token) for token in (256, 257, 258)] == [True, True, False]


def test_a_row_whose_matcher_breaks_fails_and_nobody_else():
    s = Setup()
    s.submit("broken", grammar("regex", "[a-z]{20}"))
    s.submit("sound", grammar("regex", "[a-z]{20}"))
    s.engine.tick()
    s.engine.samplers.of("broken").matcher.take(ord("!"))  # what no draw would give
    s.run()
    error = s.answer("broken")[1].error
    assert isinstance(error, InvalidParameterError)
    assert (error.param, "p is too costly" in str(error)) == ("p", True)
    assert s.answer("sound")[1].finish_reason == "stop"


DEAR_BEHIND_YY = "xxx|yy(a?){1000}a{1000}"
"""Behind two y llguidance gives up: too many expressions."""


def test_an_answer_that_llguidance_gives_up_on_ends_alone():
    """Whoever has the same grammar goes on, and so does whoever comes later."""
    asked = grammar("regex", DEAR_BEHIND_YY)
    s = Setup()
    first = GRAMMARS.matcher(asked)
    first.take(ord("x"))
    sampling = SamplingParams(temperature=0, logit_bias=((ord("y"), 100.0),))
    s.submit("broken", asked, sampling=sampling)
    s.run()
    error = s.answer("broken")[1].error
    assert isinstance(error, InvalidParameterError)
    assert "too many expressions" in str(error)
    assert first.allows(ord("x"))
    first.take(ord("x"))
    first.take(ord("x"))
    assert (first.complete, first.problem) == (True, None)
    sampling = SamplingParams(temperature=0, logit_bias=((ord("x"), 100.0),))
    s.submit("sound", asked, sampling=sampling)
    s.run()
    assert s.answer("sound")[1].finish_reason == "stop"


def test_long_answers_under_a_costly_pattern_are_followed_to_their_end():
    """Each token costs fuel, which a lexer has for a few hundred of them: it is filled up in between."""
    schema = {
        "type": "array",
        "maxItems": 20,
        "items": {"type": "string", "pattern": r"^(?:\S+\s+){0,29}\S+$", "maxLength": 300},
    }
    asked, rng = grammar("json_schema", schema, strict=True), random.Random(0)
    for _ in range(3):
        words = ["".join(rng.choices("abcdefghijk", k=rng.randint(1, 9))) for _ in range(400)]
        items = [" ".join(rng.choices(words, k=rng.randint(5, 29)))[:299].strip() for _ in range(12)]
        matcher = GRAMMARS.matcher(asked)
        for token in json.dumps(items).encode():
            assert matcher.allows(token)
            matcher.take(token)
        assert (matcher.complete, matcher.problem) == (True, None)


# -- what is refused ------------------------------------------------------------------------------------

REFUSED = [
    pytest.param("json_schema", {"type": "string", "not": {"const": "a"}}, "not", id="not"),
    pytest.param("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems", id="unique"),
    pytest.param("json_schema", {"type": "string", "format": "phone"}, "format", id="format"),
    pytest.param("json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", id="one-of"),
    pytest.param(
        "json_schema", {"not": {}, "x-guidance": {"lenient": True}}, "not", id="lenient-by-its-own-word"
    ),
]


@pytest.mark.parametrize(("kind", "text", "key"), REFUSED)
def test_strict_refuses_by_key_and_lenient_names_it(kind, text, key):
    with pytest.raises(InvalidParameterError, match=key) as caught:
        grammar(kind, text, strict=True)
    assert caught.value.param == "p"
    assert check("p", kind, json.dumps(text)).ignored == (("p", key),)


HOPELESS = [
    pytest.param("json_schema", {"type": "STRING"}, "STRING", id="type"),
    pytest.param("json_schema", {"$ref": "https://example.com/s"}, "example.com", id="remote"),
    pytest.param(
        "json_schema", {"type": "integer", "minimum": 3, "maximum": 2}, "minimum", id="unsatisfiable"
    ),
    pytest.param("regex", "(?=a)b", "look-around", id="look-ahead"),
    pytest.param("grammar", "root ::= foo", "foo", id="gbnf-rule"),
    pytest.param("grammar", "start: foo", "foo", id="lark-rule"),
    pytest.param("grammar", "root ::= " + "(" * 5000, "p cannot be used", id="gbnf-nested"),
    pytest.param("grammar", "root ::= a\n" + "a ::= a\n" * 1000, "1000 rules", id="gbnf-many-rules"),
    pytest.param("regex", "a" * (MAX_CHARS + 1), "too long", id="long"),
]


@pytest.mark.parametrize(("kind", "text", "says"), HOPELESS)
def test_what_cannot_be_used_is_refused_without_strict_too(kind, text, says):
    with pytest.raises(InvalidParameterError, match=says) as caught:
        grammar(kind, text)
    assert "<state>" not in str(caught.value)


@pytest.mark.parametrize("capital", [False, True])
def test_a_long_chain_of_rules_ends_no_process(capital):
    name = "A" if capital else "a"
    n = 12_000
    rules = "".join(f"{name}{i}:{name}{i + 1}\n" for i in range(n))
    asked = grammar("grammar", f'start:{name}0\n{rules}{name}{n}:"x"')
    matcher = GRAMMARS.matcher(asked)
    assert matcher.allows(ord("x"))
    assert len(allowed(matcher)) == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_row_is_restricted_to_what_is_allowed(seed):
    """Bit for bit: what is allowed keeps its logit, also -0.0 and -inf, and all else has none."""
    rng = np.random.default_rng(seed)
    matcher = GRAMMARS.matcher(grammar("json_schema", {"type": "object"}))
    for token in b'{"a b": [1'[: seed % 10]:
        matcher.take(token)
    values = rng.normal(0, 1e6, N_VOCAB).astype(np.float32)
    values[rng.integers(0, N_VOCAB, 20)] = -0.0
    values[rng.integers(0, N_VOCAB, 20)] = -np.inf
    expected = values.copy()
    for token in range(N_VOCAB):
        if not matcher.allows(token):
            expected[token] = -np.inf
    restrict(values, matcher.mask())
    assert values.tobytes() == expected.tobytes()


# -- while a grammar is compiled ------------------------------------------------------------------------


class Gated:
    """Grammars that compile when they are let."""

    def __init__(self, grammars):
        self.grammars, self.begun, self.may_go = grammars, threading.Event(), threading.Event()
        self.at_work, self.shown = False, ()

    def warm(self):
        self.grammars.warm()

    def matcher(self, asked, shown=(), said=()):
        self.at_work, self.shown = True, shown
        self.begun.set()
        assert self.may_go.wait(WAIT_S)
        self.at_work = False
        if asked.text == "raise":
            raise RuntimeError("a bug")
        return self.grammars.matcher(asked, shown, said)


class Loop:
    """A loop whose grammars wait at a gate."""

    def __init__(self):
        self.inbox, self.events = queue.SimpleQueue(), []
        self.clock = FakeClock()
        self.loop = EngineLoop(self.build, self.clock, lambda batch: [self.inbox.put(e) for _, e in batch])
        self.loop.start()
        self.loop.wait_open()

    def build(self, sink):
        self.engine = Engine(
            ScriptedBackend(n_slots=2, n_ctx_slot=64, n_batch=32),
            EngineLimits(
                n_slots=2, n_ctx_slot=64, n_cells=128, token_budget=32, prefill_chunk=32, min_prefix=0
            ),
            self.clock,
            sink,
        )
        self.gated = self.engine.samplers.grammars = Gated(self.engine.samplers.grammars)
        return self.engine, None

    def submit(self, request_id, asked=None, **kwargs):
        self.loop.submit(Request(request_id=request_id, prompt=(1, 2), max_tokens=9, grammar=asked, **kwargs))

    def end(self, request_id):
        while not (ends := [e for e in self.events if isinstance(e, End) and e.request_id == request_id]):
            self.events.append(self.inbox.get(timeout=WAIT_S))
        return ends[0]

    def text(self, request_id):
        return "".join(e.text for e in self.events if isinstance(e, Delta) and e.request_id == request_id)


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.gated.may_go.set()
    loop.loop.stop(timeout_s=WAIT_S)


def test_who_waits_for_a_grammar_stops_nobody(loop):
    loop.submit("bound", grammar("choice", ["yes", "no"]), shown_tokens=(257,))
    assert loop.gated.begun.wait(WAIT_S)
    assert loop.gated.shown == (257,)
    for i in range(3):  # behind it in the queue
        loop.submit(f"free{i}")
        assert loop.end(f"free{i}").finish_reason == "length"
    assert not loop.text("bound")
    loop.gated.may_go.set()
    assert loop.end("bound").finish_reason == "stop"
    assert loop.text("bound") in {"yes", "no"}


def test_a_tenants_grammars_are_compiled_one_after_the_other_and_hold_up_nobody_else(loop):
    gate, compiled = threading.Event(), threading.Event()

    class Slow(Gated):
        def matcher(self, asked, shown=(), said=()):
            if asked.field == "slow":
                compiled.set()
                assert gate.wait(WAIT_S)
            return self.grammars.matcher(asked, shown, said)

    loop.engine.samplers.grammars = Slow(loop.engine.samplers.grammars.grammars)
    for i in range(9):
        loop.submit(f"slow{i}", grammar("choice", ["yes"])._replace(field="slow"), tenant="left")
    assert compiled.wait(WAIT_S)
    loop.submit("quick", grammar("choice", ["yes"]), tenant="right")
    assert loop.end("quick").finish_reason == "stop"
    gate.set()
    for i in range(9):
        assert loop.end(f"slow{i}").finish_reason == "stop"


@pytest.mark.parametrize("text", ["no grammar at all", "raise"])
def test_a_grammar_that_fails_in_the_engine_ends_its_request_alone(loop, text):
    loop.gated.may_go.set()
    loop.submit("bad", Grammar(text, "guided_grammar"))
    error = loop.end("bad").error
    assert isinstance(error, InvalidParameterError) == (text != "raise")
    assert text == "raise" or error.param == "guided_grammar"
    loop.submit("good", grammar("choice", ["yes"]))
    assert loop.end("good").finish_reason == "stop"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_compiling_gives_way_to_the_ticks(loop, monkeypatch):
    """Also in the thread with the deep stack. The model's threads wait for the slowest of them."""
    found, real = [], grammar_module.LLMatcher

    def compiled(*args, **kwargs):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return real(*args, **kwargs)

    loop.gated.may_go.set()
    asked = grammar("regex", "(yes|no) of its own")
    monkeypatch.setattr(grammar_module, "LLMatcher", compiled)
    loop.submit("bound", asked)
    assert loop.end("bound").error is None
    assert found[0] > os.getpriority(os.PRIO_PROCESS, loop.loop._thread.native_id)


def test_a_grammar_that_comes_too_late_is_left_alone():
    s, asked = Setup(), grammar("choice", ["yes"])
    bias = SamplingParams(logit_bias=((N_VOCAB, 1.0),))
    request = Request(request_id="bad", prompt=(1,), max_tokens=5, sampling=bias, grammar=asked)
    ended = s.engine.submit(request, ready=False)
    s.engine.ready(ended, GRAMMARS.matcher(asked))
    s.run()
    assert s.answer("bad")[1].error.param == "logit_bias"


def test_the_model_is_freed_when_nobody_compiles_any_more(loop, monkeypatch):
    """They read the vocabulary, which llama.cpp frees with the model."""
    at_close = []
    monkeypatch.setattr(loop.engine.backend, "close", lambda: at_close.append(loop.gated.at_work))
    loop.submit("bound", grammar("choice", ["yes"]))
    assert loop.gated.begun.wait(WAIT_S)
    loop.loop.stop(timeout_s=0)
    assert loop.end("bound").error is not None
    loop.gated.may_go.set()
    loop.loop.stop(timeout_s=WAIT_S)
    assert at_close == [False]
