"""Reasoning that is bounded: closed by force when it took too long, never twice, and left alone otherwise."""

import numpy as np
import pytest
from answers import CALL, CALL_END, THINK, Setup, tokens_of
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.grammar import check
from cobali_ray.backend.row_sampler import RowSampler
from cobali_ray.backend.sampling import sample_rows
from cobali_ray.backend.sampling_top import sample_candidates
from cobali_ray.backend.scripted import END_TOKEN, N_VOCAB
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.reasoning import ReasoningMonitor
from cobali_ray.core.request.request import GREEDY, ReasoningBudget, SamplingParams

SHOWN = (THINK, CALL, CALL_END)
BUDGET = ReasoningBudget(4, "<think>", "</t>", tuple(b"</t>"))
OPEN = BUDGET._replace(start="")


def budget(n_tokens, base=BUDGET):
    return base._replace(n_tokens=n_tokens)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize(
    ("asked", "script", "text"),
    [
        pytest.param(BUDGET, "<think>abcdefghijk", "<think>abcd</t>ijk", id="too-long"),
        pytest.param(BUDGET, "<think>ab</t>defghi", "<think>ab</t>defghi", id="ends-in-time"),
        pytest.param(BUDGET, "<think>abcd</t>defghi", "<think>abcd</t>defghi", id="ends-just-in-time"),
        pytest.param(BUDGET, "<think>abc</t>defghi", "<think>abc</t>defghi", id="inside-the-end-marker"),
        pytest.param(BUDGET, "<think>abc</xefghi", "<think>abc</x</t>i", id="inside-what-is-no-end-marker"),
        pytest.param(BUDGET, "<think>abc<<</t>!!!!", "<think>abc<<</t>!!!!", id="falls-back-in-the-marker"),
        pytest.param(BUDGET, " \n<think>abcdefghijk", " \n<think>abcd</t>ijk", id="after-white-space"),
        pytest.param(BUDGET, "so <think>abcdefgh", "so <think>abcdefgh", id="not-at-the-beginning"),
        pytest.param(BUDGET, "<thin<think>abcdefgh", "<thin<think>abcdefgh", id="begun-otherwise"),
        pytest.param(BUDGET, "abcdefghijk", "abcdefghijk", id="no-reasoning"),
        pytest.param(BUDGET, [*b"<think>abcdefghijk"], "<think>abcd</t>ijk", id="in-many-tokens"),
        pytest.param(OPEN, "abcdefghijk", "abcd</t>ijk", id="begun-by-the-prompt"),
        pytest.param(OPEN, "ab</t>abcdefgh", "ab</t>abcdefgh", id="begun-by-the-prompt-and-ended"),
        pytest.param(budget(0), "<think>abcdefgh", "<think></t>efgh", id="none"),
        pytest.param(budget(0), "<think></t>efgh", "<think></t>efgh", id="none-said-by-itself-alike"),
        pytest.param(budget(0, OPEN), "abcdefgh", "</t>efgh", id="none-begun-by-the-prompt"),
        pytest.param(BUDGET._replace(start="\n<think>\n", end="\n</t>\n\n"), "<think>ab</t>defghijk",
            "<think>ab</t>defghijk", id="white-space-around-the-end-does-not-count"),
        pytest.param(BUDGET._replace(start="\n<think>\n"), "<think>abcdefghijk", "<think>abcd</t>ijk",
            id="white-space-around-the-start-does-not-count"),
        pytest.param(BUDGET, "<think>abc<<<<<<", "<think>abc<<</t>",
            id="at-the-beginning-of-the-marker-for-ever"),
        pytest.param(ReasoningBudget(2, "<think>", "</call>", (ord("\n"), CALL_END)), "<think>abcde",
            "<think>ab\n</call>e", id="closed-by-control-tokens"),
    ],
)  # fmt: skip
def test_reasoning_is_closed_when_its_budget_is_spent(asked, script, text, overlaps):
    s = Setup(overlaps=overlaps)
    s.submit("r", script, reasoning_budget=asked, shown_tokens=SHOWN)
    s.submit("free", script, shown_tokens=SHOWN)
    s.run()
    said, end = s.answer("r")
    assert (said, end.finish_reason) == (text, "stop")
    assert s.answer("free")[0] == (script if isinstance(script, str) else bytes(script).decode())


@given(
    st.lists(st.sampled_from(tokens_of("<think></t>ab \n")), max_size=20),
    st.integers(0, 6),
    st.booleans(),
    st.integers(0, 6),
)
def test_the_bound_holds_and_a_shorter_answer_is_untouched(tokens, n_tokens, begun, n_closing):
    """Seen from all that was said: so many free tokens inside at most, then the closing in one go."""
    closing = tuple(b"</t>")
    asked = ReasoningBudget(n_tokens, "" if begun else "<think>", "</t>", closing)
    watch = ReasoningMonitor(asked, lambda token: shown([token]))
    said, forced, inside = [], [], 0
    for token in tokens + [ord("x")] * n_closing:
        now = watch.forced
        text = shown(said)
        reasons = begun or text.lstrip().startswith(b"<think>")
        if now is not None:
            forced.append(len(said))
        elif reasons and b"</t>" not in text.lstrip().removeprefix(b"" if begun else b"<think>"):
            inside += 1
        said.append(token if now is None else now)
        watch.take(said[-1])
    assert inside <= n_tokens + len("</t>")
    if forced:
        assert forced == list(range(forced[0], forced[0] + len(forced)))
        assert tuple(said[at] for at in forced) == closing[: len(forced)]
        before = shown(said[: forced[0]])
        assert begun or before.lstrip().startswith(b"<think>")
        assert b"</t>" not in (before if begun else before.lstrip().removeprefix(b"<think>"))
        assert inside >= n_tokens


def shown(tokens):
    return b"".join(b"<think>" if token == THINK else bytes([token]) for token in tokens)


def test_forced_tokens_count_as_sampled_ones():
    """For the length, stop strings, logprobs and penalties alike."""
    asked = {"reasoning_budget": BUDGET, "shown_tokens": SHOWN}
    text, end = Setup().ask("<think>abcdefghijk", max_tokens=7, **asked)
    assert (text, end.finish_reason, end.stats.n_output) == ("<think>abcd</", "length", 7)
    text, end = Setup().ask("<think>abcdefghijk", stop=("d</t",), **asked)
    assert (text, end.finish_reason) == ("<think>abc", "stop")
    s = Setup()
    s.submit("r", "<think>abcdefghijk", sampling=SamplingParams(temperature=0, n_logprobs=1), **asked)
    s.run()
    deltas = [event for event in s.events.events["r"] if isinstance(event, Delta)]
    named = {one.piece: one for delta in deltas for one in delta.logprobs}
    assert named[b"/"].logprob == pytest.approx(-40, abs=0.01), "what the model made of it"
    assert named[b"/"].top[0][1] == b"f"
    penal = SamplingParams(temperature=0, presence_penalty=2)
    row = RowSampler(penal, (), end_tokens=frozenset({END_TOKEN}), n_vocab=N_VOCAB)
    row.reasoning = ReasoningMonitor(budget(0, OPEN), lambda token: bytes([token]))
    logits = np.zeros((1, N_VOCAB), np.float32)
    logits[0, ord("<")] = 1.5
    logits[0, ord("y")] = 1.0
    assert bytes(sample_rows(logits.copy(), [row]).tokens[0] for _ in range(5)) == b"</t>y"


def test_what_came_in_place_of_a_closing_token_ends_the_closing():
    """Seen by an engine that goes on with an answer whose grammar had refused that token."""
    reasoning = ReasoningMonitor(budget(1, OPEN), lambda token: bytes([token]))
    for token in b"a<x":
        reasoning.take(token)
    assert reasoning.forced is None


def test_what_was_forced_leaves_every_place_its_random_number():
    """So the same seed draws the same at the same place of an answer, whatever was forced before."""
    params, rng = SamplingParams(seed=4), np.random.default_rng(2)
    rows = rng.normal(0, 3, (12, N_VOCAB)).astype(np.float32)
    free = RowSampler(params, (), end_tokens=frozenset(), n_vocab=N_VOCAB)
    bound = RowSampler(params, (), end_tokens=frozenset(), n_vocab=N_VOCAB)
    bound.reasoning = ReasoningMonitor(budget(0, OPEN), lambda token: bytes([token % 256]))
    for _ in b"</t>":
        sample_rows(rows[:1].copy(), [bound])
        sample_rows(rows[:1].copy(), [free])
    drawn = [[sample_rows(row[None].copy(), [one]).tokens[0] for row in rows] for one in (free, bound)]
    assert drawn[0] == drawn[1]


def test_candidates_force_as_rows_do():
    logits = np.random.default_rng(3).normal(0, 3, (9, N_VOCAB)).astype(np.float32)
    told = []
    for on_device in (False, True):
        rows = [RowSampler(GREEDY, (), end_tokens=frozenset(), n_vocab=N_VOCAB) for _ in range(2)]
        rows[1].reasoning = ReasoningMonitor(budget(3, OPEN), lambda token: bytes([token % 256]))
        tokens = []
        for row in logits:
            both = np.stack([row, row])
            ids = np.argsort(-both, axis=1)[:, :16].astype(np.int32)
            values = np.take_along_axis(both, ids, axis=1)
            tokens.append(
                (sample_candidates(values, ids, rows) if on_device else sample_rows(both, rows)).tokens
            )
        told.append(tokens)
    assert told[0] == told[1]
    assert bytes(pair[1] for pair in told[0][3:7]) == b"</t>"


def test_a_grammar_takes_what_is_forced_and_may_refuse_it():
    digits = check("p", "regex", "[0-9]{3}").grammar
    behind = {"grammar": digits._replace(triggers=("</t>",)), "reasoning_budget": OPEN, "shown_tokens": SHOWN}
    assert Setup().ask("abcdefghijk", **behind)[0] == "abcd</t>000", "the trigger was forced"
    assert Setup().ask("ab</t>123", **behind)[0] == "ab</t>123"
    lenient = check("p", "regex", "[a-z]{4}<x[a-z]{2}").grammar
    text, end = Setup().ask("abcd<xyz", grammar=lenient, reasoning_budget=budget(4, OPEN))
    assert (text, end.finish_reason) == ("abcd<xyz", "stop"), "< was forced, / refused, the rest free"
