"""Grammars: what an answer must look like, checked and compiled by llguidance; one Matcher per sequence.

The way of a constraint: `api/body/constraint.py` reduces every spelling to one; `check` here judges it, on a
vocabulary of bytes and by beginning a few answers, in a process of its own (`judge.py`,
`api/call/judges.py`); the engine compiles it for each answer, since copies share a lexer and what breaks
that, in threads where tenants take turns (`engine/turns.py`), and until the matcher is there the request is
NOT_READY. A row is drawn as always; only if its matcher rejects the token does `sampling.py` mask what is not
allowed and draw once more. A token that completes the grammar ends the sequence (`SampleResult.complete`).
The matcher belongs to the `RowSampler`, so preemption does not touch it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from cobali_ray.backend.blame import place_of
from cobali_ray.backend.pieces import Pieces
from cobali_ray.core.request.request import Grammar
from cobali_ray.core.request.stopping import Beginning, Search, chars
from cobali_ray.errors import Field, InvalidParameterError, Path, path_of

Kind: TypeAlias = Literal["json_schema", "regex", "choice", "grammar", "llguidance"]
"""What a text may be: `grammar` is GBNF or Lark, `choice` a JSON list of texts, `llguidance` its own list."""

MAX_CHARS = 400_000
"""Of one grammar; it travels with every request. Rules that lead to rules cost stack: 4 kB each."""
MAX_GBNF_RULES = 1_000
"""Turning GBNF into Lark takes half a second for so many in a chain, four times that for twice as many."""
STACK_BYTES = 512 << 20
"""The deepest chain of rules that fits MAX_CHARS takes 200 MB; only what is used becomes memory."""
WHITE_SPACE = r" |\n{1,2}[ \t]{0,20}"
"""Between the tokens of JSON, at most this once: small models fill whole answers with it, where they may."""
ESCAPES = 'nrbtf\\"'
"""What may follow a backslash in JSON. Not `u`: with it a key could be spelt so that no rule for it holds."""
MAX_BEGUN = 1_000
"""Bytes of an answer after which it has begun otherwise than with a head."""
N_BEGUN = 16
"""Bytes with which answers are begun on trial."""
REFUEL_EVERY = 16
"""Tokens between two masks. Whatever a lexer explores costs fuel, and only a mask refills it."""
LIMITS = LLParserLimits(step_lexer_fuel=1_000_000, max_lexer_states=50_000, verbose_errors=False)
"""Of one answer: fuel for a mask and the tokens behind it, some 50 ms; states of a lexer, 2 kB each."""

_SPECIAL = b"\xff"
"""In front of a name, it tells llguidance that a token is no text."""
_CONTROL, _ANY_CONTROL = re.compile(r"<\[[^\]]*\]>"), 257
"""A control token in a grammar, and the one that stands for all where only bytes are known."""
_CONTROL_CHARACTER = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Those for which `ESCAPES` has no letter."""
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keys of a schema that hold schemas by their names."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keys of a schema that hold values."""
_KEYS = re.compile(r'Unimplemented keys: (\["[^\]]*"\])')
_KEYWORD = re.compile(r"\b(format|oneOf|min/maxProperties|patternProperties|additionalProperties|pattern)\b")

_ResultT = TypeVar("_ResultT")
_making_thread = threading.Lock()


class ConstraintText(NamedTuple):
    """A client's text, and how it is meant."""

    kind: Kind
    text: str
    strict: bool = False
    """Of a schema: refuse keys that cannot be honoured, which are ignored otherwise."""
    compact: bool = False
    """Of a schema: allow no white space between the tokens of JSON."""


Verdict: TypeAlias = tuple[str, tuple[str, ...]] | str
"""The grammar, and the keys of a schema that it ignores; or why the text cannot be used."""


class CheckedGrammar(NamedTuple):
    """A grammar that llguidance accepts."""

    grammar: Grammar
    ignored: tuple[Path, ...]
    """Keys of a schema that it does not hold answers to."""


def judge(case: ConstraintText) -> Verdict:
    """Judge a client's text, on a deep stack. What that takes is bounded by `backend/judge.py`, not here.

    Special tokens are known to the engine alone, which compiles again.
    """
    kind, text, strict, compact = case
    try:
        if kind == "json_schema" and (place := _unwritten(json.loads(text))):
            return f"{place}: answers have no control character but \\b, \\f, \\n, \\r and \\t"
        grammar = _from(kind, text, strict=strict, compact=compact)
    except ValueError as error:
        return f"#: {error}" if kind == "json_schema" else str(error)
    except RecursionError:
        return "#: it is nested too deeply"
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        return (
            _placed(text, messages[0], strict=strict, compact=compact)
            if kind == "json_schema"
            else messages[0]
        )
    if problem := _tried(grammar):
        return f"#: {problem}" if kind == "json_schema" else problem
    ignored = [key for message in messages for key in _keys_of(message)] if kind == "json_schema" else []
    return grammar, tuple(dict.fromkeys(ignored))


def check(
    field: Field,
    kind: Kind,
    text: str,
    *,
    strict: bool = False,
    compact: bool = False,
    judge: Callable[[ConstraintText], Verdict] = lambda case: deeply(lambda: judge(case)),
) -> CheckedGrammar:
    """Return the one grammar that a client's text means. Raises InvalidParameterError that names `field`."""
    if len(text) > MAX_CHARS:
        shorter = "offer fewer tools or shorten their parameters" if kind == "llguidance" else "shorten it"
        problem = f"is too long: its grammar has {len(text):,} characters of at most {MAX_CHARS:,}"
        raise InvalidParameterError(field, f"{problem}; {shorter}")
    verdict = judge(ConstraintText(kind, text, strict, compact))
    if isinstance(verdict, str):
        raise _refusal(field, verdict)
    grammar, ignored = verdict
    return CheckedGrammar(Grammar(grammar, field), tuple((*path_of(field), key) for key in ignored))


def _unwritten(schema: Any) -> str:
    """Return where a schema wants a control character that no answer can have; "" if nowhere.

    llguidance would leave it out in silence. Keys may have it.
    """
    open_ = [(schema, "#", False)]
    while open_:
        node, place, names = open_.pop()  # `names`: its keys are the names of schemas
        parts = dict(enumerate(node)) if isinstance(node, list) else node
        if not isinstance(parts, dict):
            continue
        for key, part in parts.items():
            there = f"{place}/{str(key).replace('~', '~0').replace('/', '~1')}"
            if names or key not in _VALUES:
                open_.append((part, there, not names and key in _NAMED))
            elif key in ("const", "enum") and _has_control(part):
                return there
    return ""


def _has_control(value: Any) -> bool:
    open_ = [value]
    while open_:
        node = open_.pop()
        if isinstance(node, dict | list):
            open_ += node.values() if isinstance(node, dict) else node
        elif isinstance(node, str) and _CONTROL_CHARACTER.search(node):
            return True
    return False


def _placed(text: str, message: str, *, strict: bool, compact: bool) -> str:
    """Return why a schema is refused, with the part of it that is to blame in front."""

    def refusal(schema: str) -> str:
        grammar = _from("json_schema", schema, strict=strict, compact=compact)
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        return messages[0] if failed else ""

    return f"{place_of(json.loads(text), refusal)}: {message}"


def _tried(grammar: str) -> str:
    """Return why answers cannot be begun under a grammar, "" if they can. Each byte is a token here.

    To compile takes as long as for any other vocabulary. `validate_grammar` builds no lexer, and that is
    where a few characters can come to minutes.
    """
    matcher = LLMatcher(_of_bytes(), _CONTROL.sub(f"<[{_ANY_CONTROL}]>", grammar), log_level=0, limits=LIMITS)
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if (problem := matcher.get_error()).startswith("NoExtension"):
        return "no answer can fit it"
    for byte in np.flatnonzero(allowed[:256])[:N_BEGUN].tolist():
        if problem:
            break
        begun = matcher.deep_copy()
        begun.consume_token(byte)
        begun.compute_bitmask()
        problem = begun.get_error()
    return "" if "special token" in problem else problem.partition("\n")[0]


@cache
def _of_bytes() -> LLTokenizer:
    pieces = Pieces(lambda token: bytes([token]) if token < 256 else b"", lambda _: "", frozenset({256}))
    return _tokenizer_of(_ANY_CONTROL + 1, pieces, lambda text: list(text.encode()))


def schema_grammar(case: ConstraintText) -> str:
    """Return the grammar of a schema without judging it; "" where there is none."""
    try:
        return _from("json_schema", case.text, strict=case.strict, compact=case.compact)
    except ValueError:
        return ""


def _from(kind: Kind, text: str, *, strict: bool, compact: bool) -> str:
    if kind == "json_schema":
        # What overrides `x-guidance`, by which a schema could make itself lenient.
        return LLMatcher.grammar_from_json_schema(
            text,
            overrides={
                "lenient": not strict,
                "coerce_one_of": not strict,
                "whitespace_flexible": not compact,
                "whitespace_pattern": None if compact else WHITE_SPACE,
                "json_allowed_escapes": ESCAPES,
            },
        )
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        # One lexeme, of which llguidance takes any number; of rules it takes 2,000 beside each other.
        return _listed("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, json.loads(text))))
    if kind == "llguidance":
        return text
    if text.count("::=") > MAX_GBNF_RULES:
        raise ValueError(f"it has more than {MAX_GBNF_RULES} rules; Lark may have more")
    try:
        return _listed(any_to_lark(text))
    except Exception as error:  # its reader of GBNF raises many kinds
        raise ValueError(str(error)) from None


def _listed(lark: str) -> str:
    """Return a grammar in Lark as llguidance's list, which can be put into another."""
    return json.dumps({"grammars": [{"lark_grammar": lark}]}, ensure_ascii=False)


def _refusal(field: Field, message: str) -> InvalidParameterError:
    # Behind these, llguidance prints its own state.
    plain = message.partition("\n<state>")[0].partition("\n<backtrace>")[0].strip()[:500]
    return InvalidParameterError(field, f"cannot be used: {plain}")


def _keys_of(message: str) -> list[str]:
    """Return which keys a warning is about."""
    if match := _KEYS.match(message):
        return list(map(str, json.loads(match[1])))
    if message.startswith("Unknown format"):
        return ["format"]
    match = _KEYWORD.search(message)
    return [match[1]] if match else []


def deeply(work: Callable[[], _ResultT]) -> _ResultT:
    """Do work that may recurse tens of thousands of times: where the stack ends, the process dies."""
    with ThreadPoolExecutor(1, thread_name_prefix="deep") as pool:
        with _making_thread:
            before = threading.stack_size(STACK_BYTES)
            try:
                future = pool.submit(work)  # makes the thread
            finally:
                threading.stack_size(before)
        return future.result()


class Matcher:
    """Where one sequence stands in its grammar. Used by one thread.

    Until a trigger has appeared in the answer everything is allowed. The grammar matches bytes, so it takes
    what a token holds behind the trigger, and the text of a shown control token, by tokens that spell them.
    With heads, everything is allowed until the answer has begun with one of them, which the grammar then
    takes; if it begins otherwise, everything stays allowed.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        *,
        field: Field,
        end_token: int,
        triggers: Sequence[str],
        heads: tuple[str, ...],
        piece: Callable[[int], bytes],
        spell: Callable[[bytes], list[int] | None],
        spellings: Mapping[int, list[int]],
    ) -> None:
        """`piece` gives what a token shows, `spell` tokens of a text, `spellings` those of shown tokens.

        `field` is where in the body the grammar stands.
        """
        self._matcher, self._field, self.end_token = matcher, field, end_token
        self._n_since_mask = 0
        """Tokens that the grammar took since it was last asked for a mask."""
        self._piece, self._spell, self._spellings = piece, spell, spellings
        self._searches = [Search(chars(trigger.encode())) for trigger in triggers]
        self._beginning = Beginning(heads) if heads else None
        self._begun = b""
        """What the answer has shown so far, while it is not clear how it begins."""
        self.holds = not triggers and not heads
        """Whether the grammar holds by now."""
        self.complete = False
        """Whether nothing but an end may follow."""

    def allows(self, token: int) -> bool:
        """Tell whether a token may come next."""
        return not self.holds or self._takes([token]) or self._takes_spelt(token)

    def mask(self) -> NDArray[np.uint8]:
        """Return which tokens may come next, where the grammar holds: a bit each, the first one lowest."""
        self._n_since_mask = 0
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if spelt := [token for token in self._spellings if self._takes_spelt(token)]:
            bits = bits.copy()
            for token in spelt:
                bits[token >> 3] |= 1 << (token & 7)
        return bits

    def take(self, token: int) -> None:
        """Go on by a token that may come next."""
        if not self.holds:
            if self._beginning is not None:
                self._begin(self._beginning, self._piece(token))
            elif self._searches:
                self._listen(self._piece(token))
            return
        spelling = self._spellings.get(token)
        if spelling is None or self._takes([token]):
            self._matcher.consume_token(token)
        else:
            self._matcher.consume_tokens(spelling)
        self.complete = self._matcher.is_stopped()
        self._n_since_mask += 1
        if self._n_since_mask >= REFUEL_EVERY and not self.complete:
            self._n_since_mask = 0
            self._matcher.compute_bitmask()

    def _listen(self, piece: bytes) -> None:
        """Begin behind the first trigger after which the grammar takes the rest of the token."""
        text = chars(piece)
        ends = [end for search in self._searches for end in search.ends(text)]
        for end in sorted(ends):
            rest = self._spell(piece[end:])
            if rest is not None and self._takes(rest):
                self._matcher.consume_tokens(rest)
                self.holds, self.complete = True, self._matcher.is_stopped()
                return

    def _begin(self, beginning: Beginning, piece: bytes) -> None:
        """Begin once the answer has begun with a head, if the grammar takes all that it has shown."""
        self._begun += piece
        has_begun = beginning.feed(chars(piece))
        if has_begun is None and len(self._begun) <= MAX_BEGUN:
            return
        self._beginning = None
        tokens = self._spell(self._begun) if has_begun else None
        if tokens is not None and self._takes(tokens):
            self._matcher.consume_tokens(tokens)
            self.holds, self.complete = True, self._matcher.is_stopped()

    def _takes(self, tokens: list[int]) -> bool:
        return bool(self._matcher.validate_tokens(tokens) == len(tokens))

    def _takes_spelt(self, token: int) -> bool:
        spelling = self._spellings.get(token)
        return spelling is not None and self._takes(spelling)

    @property
    def may_end(self) -> bool:
        """Whether the tokens taken are a whole answer."""
        return self._matcher.is_accepting()

    @property
    def problem(self) -> InvalidParameterError | None:
        """Why the grammar cannot be followed any further, if so: it is too costly to match."""
        if not self._matcher.is_error():
            return None
        reason = self._matcher.get_error().split("\n", 1)[0]
        return InvalidParameterError(self._field, f"is too costly to follow any further: {reason}")


def _spell(by_byte: Mapping[int, int], data: bytes) -> list[int] | None:
    """Return tokens of one byte each that spell this; None for a byte that no token is."""
    tokens = [by_byte.get(byte, -1) for byte in data]
    return None if -1 in tokens else tokens


class Grammars:
    """Compiles grammars for one vocabulary. Any thread may call it.

    Each answer has a lexer of its own. Copies of a matcher share theirs, with its fuel and what breaks it.
    """

    def __init__(
        self,
        *,
        n_vocab: int,
        pieces: Pieces,
        tokenize: Callable[[str], list[int]],
    ) -> None:
        self._n_vocab, self._pieces, self._tokenize = n_vocab, pieces, tokenize

    def warm(self) -> None:
        """Make what all grammars need, which takes a second for a large vocabulary."""
        _ = self._tokenizer, self._by_byte

    def matcher(
        self, grammar: Grammar, shown_tokens: Sequence[int] = (), sent_tokens: Sequence[int] = ()
    ) -> Matcher:
        """Return a matcher behind the sent tokens of an answer that shows these control tokens.

        Raises InvalidParameterError where the grammar cannot be used.
        """
        pieces, spell, spellings = self._pieces, partial(_spell, self._by_byte), {}
        for token in shown_tokens:
            if (piece := pieces.of(token, shown_tokens)) and (spelling := spell(piece)):
                spellings[token] = spelling
        matcher = Matcher(
            self._compile(grammar),
            field=grammar.field,
            end_token=min(pieces.end_tokens, default=-1),
            triggers=grammar.triggers,
            heads=grammar.heads,
            piece=partial(pieces.of, shown_tokens=shown_tokens),
            spell=spell,
            spellings=spellings,
        )
        for token in sent_tokens:
            matcher.take(token)
        return matcher

    def _compile(self, grammar: Grammar) -> LLMatcher:
        tokenizer = self._tokenizer
        matcher = deeply(lambda: LLMatcher(tokenizer, grammar.text, log_level=0, limits=LIMITS))
        if matcher.is_error():
            raise _refusal(grammar.field, matcher.get_error())
        return matcher

    @cached_property
    def _by_byte(self) -> dict[int, int]:
        """The tokens of one byte, by that byte."""
        ends = self._pieces.end_tokens
        return {
            piece[0]: token
            for token in range(self._n_vocab)
            if len(piece := self._pieces.of(token)) == 1 and token not in ends
        }

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return _tokenizer_of(self._n_vocab, self._pieces, self._tokenize)


def _tokenizer_of(n_vocab: int, pieces: Pieces, tokenize: Callable[[str], list[int]]) -> LLTokenizer:
    """Return a vocabulary for llguidance."""
    wrapper = TokenizerWrapper(_Tokens(n_vocab, pieces, tokenize))
    return LLTokenizer(wrapper, n_vocab=n_vocab, eos_token=sorted(pieces.end_tokens) or None)


class _Tokens:
    """A vocabulary as llguidance wants it: every token by the bytes that the client sees of it."""

    bos_token_id = None

    def __init__(self, n_vocab: int, pieces: Pieces, tokenize: Callable[[str], list[int]]) -> None:
        ends = pieces.end_tokens
        self.eos_token_id = min(ends, default=0)
        self._tokenize = tokenize
        self.tokens: list[bytes] = []
        for token in range(n_vocab):
            piece = b"" if token in ends else pieces.of(token)
            self.tokens.append(piece or _SPECIAL + (pieces.name(token) or f"<[{token}]>").encode())
        self.special_token_ids: Sequence[int] = [
            token for token, text in enumerate(self.tokens) if text.startswith(_SPECIAL)
        ]

    def __call__(self, text: Any) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("texts are given as str")
        return self._tokenize(text)
