"""Grammars that begin at a trigger: free before it, held behind it, to the byte."""

import json

import numpy as np
import pytest
from answers import CALL, CALL_END, NAMES, THINK, Setup, allowed, tokens_of
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.grammar import Grammars, check
from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.row_sampler import RowSampler
from cobali_ray.backend.sampling_top import sample_candidates
from cobali_ray.backend.scripted import END_TOKEN, N_VOCAB, ByteVocab
from cobali_ray.core.request.request import GREEDY, SamplingParams
from cobali_ray.core.request.stopping import Search

SHOWN = (CALL, CALL_END, THINK)
PAIR = check("tools", "regex", r"\{[ab]+\}").grammar
CHUNKS = [
    b"<c", b"ll>", b"all>{", b"l>{a", b"ll>!", b"x<call>", b"<call>x<call>{b", b"{a", b"}", "ü".encode(),
]  # fmt: skip


def begins(*triggers, grammar=PAIR):
    return grammar._replace(triggers=triggers)


def chunky(chunks=CHUNKS):
    """Grammars over bytes, control tokens, and tokens of several bytes from 300 on."""
    texts = {300 + i: chunk for i, chunk in enumerate(chunks)}
    pieces = Pieces(
        lambda token: bytes([token]) if token < 256 else texts.get(token, b""),
        lambda token: NAMES.get(token, ""),
        frozenset({END_TOKEN}),
    )
    return Grammars(n_vocab=300 + len(chunks), pieces=pieces, tokenize=ByteVocab().tokenize), pieces


CHUNKY, PIECES = chunky()


def after(grammar, tokens, shown=()):
    matcher = CHUNKY.matcher(grammar, shown)
    for token in tokens:
        assert matcher.allows(token)
        matcher.take(token)
        assert matcher.problem is None
    return matcher


# -- the whole way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize(
    ("script", "text"),
    [
        pytest.param("see {x} <call>!ab}", "see {x} <call>{ab}", id="held-behind-it"),
        pytest.param("<call>{ab}<call>", "<call>{ab}", id="ends-when-complete"),
        pytest.param("no {x} at all", "no {x} at all", id="never"),
        pytest.param("", "", id="nothing-said"),
    ],
)
def test_the_answer_is_free_until_the_trigger(script, text, overlaps):
    s = Setup(overlaps=overlaps)
    s.submit("r", script, grammar=begins("<call>"), shown_tokens=SHOWN)
    s.run()
    said, end = s.answer("r")
    assert (said, end.finish_reason) == (text, "stop")


def test_a_control_token_is_no_trigger_unless_it_is_shown():
    assert Setup().ask("<call>zz", grammar=begins("<call>"))[0] == "zz"
    assert Setup().ask("<call>zz", grammar=begins("<call>"), shown_tokens=SHOWN)[0][:7] == "<call>{"


def test_an_end_ends_a_free_answer_and_no_unfinished_one():
    free, end = Setup().ask("a", grammar=begins("<call>"), shown_tokens=SHOWN)
    assert (free, end.finish_reason, end.stats.n_output) == ("a", "stop", 2)
    held, end = Setup().ask("<call>{a", grammar=begins("<call>"), shown_tokens=SHOWN, max_tokens=5)
    assert (held[:8], end.finish_reason) == ("<call>{a", "length")


def test_a_free_answer_is_drawn_as_without():
    free = SamplingParams(seed=5)
    texts = [
        Setup().ask("no call here", sampling=free, grammar=asked)[0] for asked in (None, begins("<call>"))
    ]
    assert texts[0] == texts[1]


# -- to the byte ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "holds", "next_ones"),
    [
        pytest.param([b"<c", ord("a"), b"ll>"], True, b"{", id="in-pieces"),
        pytest.param([b"<c", b"all>{"], True, b"ab", id="one-byte-more"),
        pytest.param([b"<c", ord("a"), b"l>{a"], False, None, id="another-text"),
        pytest.param([b"<c", ord("a"), ord("l"), b"l>{a"], True, b"ab}", id="two-bytes-more"),
        pytest.param([b"<c", ord("a"), b"ll>!"], False, None, id="refused-so-it-was-none"),
        pytest.param([b"<c", ord("a"), b"ll>!", b"x<call>"], True, b"{", id="the-second-counts"),
        pytest.param([b"<call>x<call>{b"], True, b"ab}", id="the-second-within-a-token"),
        pytest.param([ord("<"), b"<c", b"all>{"], True, b"ab", id="falls-back"),
        pytest.param([CALL, b"{a"], True, b"ab}", id="a-shown-token"),
        pytest.param([b"<c", THINK, b"all>{"], False, None, id="broken-by-a-shown-token"),
    ],
)
def test_what_a_token_holds_behind_the_trigger_is_the_grammars(tokens, holds, next_ones):
    tokens = [300 + CHUNKS.index(one) if isinstance(one, bytes) else one for one in tokens]
    matcher = after(begins("<call>"), tokens, SHOWN)
    assert matcher.holds is holds
    if holds:
        assert bytes(token for token in range(256) if matcher.allows(token)) == bytes(sorted(next_ones))
        assert bytes(allowed(matcher)[: len(next_ones)]) == bytes(sorted(next_ones))


def test_of_several_triggers_the_first_that_appears_counts():
    for said in (b"x[a{", b"x<b>{"):
        matcher = after(begins("<b>", "[a", "[ab"), list(said))
        assert matcher.holds
        assert matcher.allows(ord("a"))


def test_a_trigger_may_hold_more_than_ascii():
    matcher = after(begins("ü{"), [*"üü".encode(), *"ü{".encode()], ())
    assert matcher.holds


def begun(tokens):
    """The plain matcher behind the first trigger whose token's rest it takes, found among all bytes."""
    said, matcher = b"", None
    for token in tokens:
        piece = PIECES.of(token, SHOWN)
        if matcher is not None:
            take_all(matcher, piece)
        for end in range(1, len(piece) + 1):
            if matcher is None and (said + piece[:end]).endswith(b"<call>"):
                fresh = CHUNKY.matcher(PAIR)
                matcher = fresh if take_all(fresh, piece[end:]) else None
        said += piece
    return matcher


def take_all(matcher, text):
    for byte in text:
        if not matcher.allows(byte):
            return False
        matcher.take(byte)
    return True


@given(st.lists(st.sampled_from([*range(300, 300 + len(CHUNKS)), *b"<cal>{ab}!", CALL]), max_size=12))
def test_however_the_answer_is_cut_the_bytes_decide(tokens):
    matcher, taken = CHUNKY.matcher(begins("<call>"), SHOWN), []
    for token in tokens:
        if matcher.complete or not matcher.allows(token):
            continue
        matcher.take(token)
        taken.append(token)
        expected = begun(taken)
        assert matcher.holds is (expected is not None)
        if expected is not None:
            assert matcher.complete is expected.complete
            assert [matcher.allows(one) for one in range(256)] == [expected.allows(one) for one in range(256)]


# -- shown tokens inside a grammar ----------------------------------------------------------------------


def test_a_shown_token_is_its_text_to_a_grammar():
    asked = check("tools", "regex", r"<call>[ab]</call>").grammar
    matcher = after(asked, tokens_of("<call>a"), SHOWN)
    assert [matcher.allows(token) for token in (CALL, CALL_END, ord("<"), END_TOKEN)] == [
        False,
        True,
        True,
        False,
    ]
    assert allowed(matcher) == [ord("<"), CALL_END]
    matcher.take(CALL_END)
    assert matcher.complete
    unshown = after(asked, b"<call>a")
    assert allowed(unshown) == [ord("<")]


def test_a_grammar_may_also_name_a_token_itself():
    asked = check("tools", "grammar", f'start: "a" <[{CALL_END}]>').grammar
    matcher = after(asked, b"a", SHOWN)
    assert allowed(matcher) == [CALL_END]
    matcher.take(CALL_END)
    assert matcher.complete


def test_a_call_is_drawn_with_its_markers():
    schema = {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    text = f'start: body "</call>"\nbody: %json {json.dumps({"type": "object"} | schema)}'
    asked = check("tools", "grammar", text).grammar
    said, end = Setup().ask(
        'Let me see. <call>{"n":2}</call> and more',
        grammar=begins("<call>", grammar=asked),
        shown_tokens=SHOWN,
    )
    assert (said, end.finish_reason) == ('Let me see. <call>{"n":2}</call>', "stop")


# -- candidates -----------------------------------------------------------------------------------------


def test_candidates_suffice_until_the_grammar_holds():
    row = RowSampler(GREEDY, (), end_tokens=frozenset({END_TOKEN}), n_vocab=N_VOCAB)
    row.matcher = CHUNKY.matcher(begins("<call>"), SHOWN)
    assert row.suffices(128)
    row.matcher.take(CALL)
    assert not row.suffices(128)


def test_a_trigger_is_heard_among_candidates():
    row = RowSampler(GREEDY, (), end_tokens=frozenset({END_TOKEN}), n_vocab=N_VOCAB)
    row.matcher = CHUNKY.matcher(begins("ab", grammar=check("tools", "regex", "c?").grammar))
    for token in b"ab":
        values, ids = np.array([[3.0, 2.0]], np.float32), np.array([[token, 7]], np.int32)
        sampled = sample_candidates(values, ids, [row])
        assert (sampled.tokens, sampled.complete, row.n_sampled) == ([token], [], token - 96)
    assert row.matcher.holds


# -- the search -----------------------------------------------------------------------------------------


@given(st.text("ab", min_size=1, max_size=4), st.lists(st.text("ab", max_size=5), max_size=6))
def test_a_search_finds_every_place(wanted, pieces):
    search, text = Search(wanted), ""
    for piece in pieces:
        text += piece
        expected = [
            end - (len(text) - len(piece))
            for end in range(len(text) - len(piece) + 1, len(text) + 1)
            if text[:end].endswith(wanted)
        ]
        assert search.ends(piece) == expected
