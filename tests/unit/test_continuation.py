"""An answer goes on behind what another engine said of it: no token twice, none missing, no text twice."""

import pytest
from answers import OnEngine

from cobali_ray.backend.grammar import check
from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.request.events import Computing, Delta, End
from cobali_ray.core.request.request import Grammar, ReasoningBudget, Request, SamplingParams

N = 40
GREEDY = SamplingParams(temperature=0)


def engine_on(backend=None, *, chunk=64):
    backend = backend or ScriptedBackend(n_slots=1, n_ctx_slot=256)
    one = OnEngine(backend, token_budget=chunk, prefill_chunk=chunk, min_prefix=4)
    return one.engine, one.events


def run(request, *, overlaps=False):
    adapters = (Adapter("one", "1", "one.gguf", 1.0),)
    engine, recorder = engine_on(
        ScriptedBackend(
            n_slots=2, n_ctx_slot=256, overlaps=overlaps, end_probability=0.01, adapters=adapters
        ),
        chunk=32,
    )
    engine.submit(request)
    while engine.has_work:
        engine.tick()
    engine.scheduler.check()
    return recorder.events[request.request_id]


def request(**fields):
    fields = {"sampling": GREEDY} | fields
    return Request(request_id="a", prompt=tuple(b"tell me"), max_tokens=N, **fields)


def told(events):
    return [event for event in events if isinstance(event, Delta)]


def text(deltas):
    return "".join(delta.text for delta in deltas)


WARM = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
CASES = {
    "greedy": request(),
    "drawn": request(sampling=WARM),
    "under an adapter": request(sampling=WARM, adapter="1"),
    "drawn from whole rows": request(sampling=SamplingParams(temperature=1.2, seed=3)),
    "penalised": request(
        sampling=SamplingParams(temperature=0.7, seed=5, frequency_penalty=1.5, repetition_penalty=1.3)
    ),
    "bad words": request(
        sampling=SamplingParams(
            temperature=0.9,
            seed=2,
            bad_words=tuple((a, b) for a in range(60, 90, 3) for b in range(40, 120, 4)),
        )
    ),
    "least length": request(sampling=SamplingParams(temperature=0, min_tokens=30)),
    "logprobs": request(sampling=SamplingParams(temperature=0.8, seed=4, n_logprobs=2)),
    "logprobs of its prompt": request(sampling=WARM, n_prompt_logprobs=2),
    "held to a grammar": request(
        grammar=check("regex", "regex", r"[a-f]{3}-[0-9]{30}").grammar, sampling=WARM
    ),
    "held behind a trigger": request(
        grammar=Grammar(check("tools", "regex", "[xyz]{20}").grammar.text, "tools", triggers=("e", "i")),
        sampling=WARM,
    ),
    "reasoning": request(reasoning_budget=ReasoningBudget(9, "", "</t>", tuple(b"</t>")), sampling=WARM),
    "reasoning that a grammar does not let end": request(
        reasoning_budget=ReasoningBudget(9, "", "</t>", tuple(b"</t>")),
        grammar=check("regex", "regex", "[a-z</]{40}").grammar,
        sampling=WARM,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_answer_goes_on_as_if_nothing_had_happened(case):
    whole = run(case)
    deltas, (end,) = told(whole), [event for event in whole if isinstance(event, End)]
    for n_told in sorted({1, 2, len(deltas) // 2, len(deltas) - 1}):
        said = tuple(token for delta in deltas[:n_told] for token in delta.tokens)
        n_scored = sum(len(delta.prompt) for delta in deltas[:n_told])
        begun = {"sent_tokens": said, "n_scored": n_scored, "attempt": 1}
        again = run(Request(**fields_of(case) | begun))
        rest = [delta._replace(stats=None) for delta in told(again)]
        assert rest == [delta._replace(stats=None) for delta in deltas[n_told:]], f"behind {len(said)} tokens"
        last = again[-1]
        assert (last.finish_reason, last.error) == (end.finish_reason, None)
        assert (last.stats.n_prompt, last.stats.n_output) == (end.stats.n_prompt, end.stats.n_output)
        assert last.stats.n_said == len(said)
        assert last.stats.n_cached == 0


def fields_of(case):
    return {name: getattr(case, name) for name in Request.__slots__}


@pytest.mark.parametrize("overlaps", [False, True])
def test_text_that_was_held_back_comes_once(overlaps):
    """Of a stop string that began, of a character that is not whole."""
    whole = text(told(run(request())))
    case = request(stop=(whole[10:14] + "\0", whole[20:25]))
    deltas = told(run(case, overlaps=overlaps))
    assert text(deltas) == whole[:20]
    assert max(len(delta.tokens) for delta in deltas) > 1, "something was held back"
    for n_told in range(1, len(deltas)):
        said = tuple(token for delta in deltas[:n_told] for token in delta.tokens)
        again = run(Request(**fields_of(case) | {"sent_tokens": said}), overlaps=overlaps)
        assert text(deltas[:n_told]) + text(told(again)) == whole[:20]
        assert again[-1].finish_reason == "stop"


def test_what_was_said_is_computed_as_a_prompt():
    said = tuple(token for delta in told(run(request()))[:20] for token in delta.tokens)
    engine, recorder = engine_on(backend := ScriptedBackend(n_slots=2, n_ctx_slot=256))
    engine.submit(request(sent_tokens=said))
    while not recorder.events["a"]:
        engine.tick()
    assert backend.n_forwards == 1


def test_the_engine_says_that_it_computes_before_it_does():
    class Backend(ScriptedBackend):
        def forward(self, batch):
            seen.append([word for word in recorder.events["a"] if isinstance(word, Computing)])
            super().forward(batch)

    seen = []
    for reply_to, words in (("here", [Computing("a", on=True)]), ("", [])):
        engine, recorder = engine_on(Backend(n_slots=1, n_ctx_slot=256))
        for name in ("a", "behind"):
            engine.submit(Request(**fields_of(request()) | {"request_id": name, "reply_to": reply_to}))
        while not recorder.ends("a"):
            engine.tick()
        assert seen[0] == words
        assert not [word for word in recorder.events["behind"] if isinstance(word, Computing)], "it waits"
        seen.clear()


def test_the_engine_says_when_a_request_is_prepared_and_only_waits():
    engine, recorder = engine_on()
    engine.submit(Request(**fields_of(request()) | {"request_id": "first"}))
    case = Request(**fields_of(CASES["held to a grammar"]) | {"reply_to": "here"})
    sequence = engine.submit(case, ready=False)
    engine.tick()
    assert not recorder.events["a"]
    engine.ready(sequence, engine.samplers.matcher(case))
    assert recorder.events["a"] == [Computing("a", on=False)]
    while not recorder.ends("a"):
        engine.tick()
    assert recorder.events["a"][1] == Computing("a", on=True)


def test_who_is_in_the_middle_of_an_answer_goes_before_those_who_have_not_begun():
    (engine, recorder), order = engine_on(), []
    for name, said in (("new", ()), ("continued", (7,))):
        engine.submit(
            Request(request_id=name, prompt=(1, 2), max_tokens=3, sampling=GREEDY, sent_tokens=said)
        )
    while engine.has_work:
        engine.tick()
        order += [
            event.request_id for batch in recorder.batches for _, event in batch if isinstance(event, End)
        ]
        recorder.batches.clear()
    assert order == ["continued", "new"]


def test_a_first_delta_says_how_the_answer_began_and_the_others_do_not():
    first, *others = told(run(request()))
    assert first.stats.n_prompt == 7
    assert first.stats.ttft_s is not None
    assert all(delta.stats is None for delta in others)


def test_what_was_said_is_no_cached_prompt():
    engine, recorder = engine_on()
    engine.submit(request())
    while engine.has_work:
        engine.tick()
    said = tuple(token for delta in told(recorder.events["a"])[:20] for token in delta.tokens)
    engine.submit(Request(**fields_of(request()) | {"request_id": "b", "sent_tokens": said}))
    while engine.has_work:
        engine.tick()
    (end,) = recorder.ends("b")
    assert end.stats.n_cached == end.stats.n_prompt == 7
