"""Is an answer right? One checker per form of answer; none looks at how the question was worded."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cobali_ray.chat.answer_events import ParsedAnswer
from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import Format
from cobali_ray.chat.splitter import Splitter
from training.corpus.example import Check
from training.corpus.template import template

_NUMBER = re.compile(r"-?\d+")
_WORD = re.compile(r"[^\W_]+")


def passes(check: Check, answer: str) -> bool:
    """Say whether `answer` is right. An unknown checker is a KeyError."""
    return _CHECKERS[check.name](answer.strip(), check.facts)


def exact(text: str) -> Check:
    """Ask for this text, but for case, spaces and the last mark."""
    return Check("exact", {"text": text})


def verbatim(text: str) -> Check:
    """Ask for exactly this text."""
    return Check("verbatim", {"text": text})


def has(*terms: str) -> Check:
    """Ask for every term, as whole words, in any case; `a|b` is satisfied by either."""
    return Check("has", {"terms": terms})


def number(value: int) -> Check:
    """Ask for this number as the last one of the answer."""
    return Check("number", {"value": value})


def json_value(value: Any) -> Check:
    """Ask for JSON that stands for this value, and nothing else."""
    return Check("json", {"value": value})


def json_record(known: Mapping[str, Any], *numbers: str) -> Check:
    """Ask for a JSON object on one line that says what is known, and some whole number under each other name."""
    return Check("json_record", {"known": dict(known), "numbers": numbers})


def items(expected: tuple[str, ...], *, mark: str = "") -> Check:
    """Ask for these items in this order; each on a line of its own after `mark`, or else in one line."""
    return Check("items", {"wanted": expected, "mark": mark})


def some_of(pool: tuple[str, ...], n: int, *, mark: str) -> Check:
    """Ask for `n` different items of a pool, each on a line of its own; mark `1` means numbered lines."""
    return Check("some_of", {"pool": pool, "n": n, "mark": mark})


def story(*terms: str) -> Check:
    """Ask for three to eight different sentences that name every term."""
    return Check("story", {"terms": terms})


def haiku(term: str, lines: tuple[str, ...]) -> Check:
    """Ask for three different lines out of `lines` (whose syllables are counted) that name the term."""
    return Check("haiku", {"term": term, "lines": lines})


def bullets(n: int, *terms: str) -> Check:
    """Ask for `n` different bullet points that hold every term between them."""
    return Check("bullets", {"n": n, "terms": terms})


def sentences(n: int, *terms: str) -> Check:
    """Ask for `n` different sentences that hold every term between them."""
    return Check("sentences", {"n": n, "terms": terms})


def one_sentence(text: str) -> Check:
    """Ask for one sentence with most of the long words of `text`."""
    return Check(
        "one_sentence", {"words": tuple(word for word in _WORD.findall(text.casefold()) if len(word) > 4)}
    )


def calls(expected: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[Mapping[str, Any]]) -> Check:
    """Ask for these calls of the offered tools, each with its name and arguments, and for nothing else."""
    return Check("calls", {"wanted": [[name, dict(some)] for name, some in expected], "tools": list(tools)})


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?").strip("\"'")


def _has_terms(answer: str, terms: tuple[str, ...]) -> bool:
    text = " " + " ".join(_WORD.findall(answer.casefold())) + " "

    def there(term: str) -> bool:
        return f" {' '.join(_WORD.findall(term.casefold()))} " in text

    return all(any(there(way) for way in term.split("|")) for term in terms)


def _sentences(answer: str) -> list[str]:
    return [piece.strip() for piece in re.split(r"(?<=[.!?])\s+", answer) if piece.strip()]


def _lines(answer: str) -> list[str]:
    return [line.strip() for line in answer.splitlines() if line.strip()]


def _is_exact(answer: str, facts: Mapping[str, Any]) -> bool:
    return _plain(answer) == _plain(facts["text"])


def _is_verbatim(answer: str, facts: Mapping[str, Any]) -> bool:
    return answer == facts["text"]


def _has(answer: str, facts: Mapping[str, Any]) -> bool:
    return _has_terms(answer, tuple(facts["terms"]))


def _is_number(answer: str, facts: Mapping[str, Any]) -> bool:
    numbers = _NUMBER.findall(answer.replace(",", " "))
    return bool(numbers) and int(numbers[-1]) == facts["value"]


def _is_json(answer: str, facts: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(answer) == facts["value"])
    except ValueError:
        return False


def _is_json_record(answer: str, facts: Mapping[str, Any]) -> bool:
    try:
        record = json.loads(answer)
    except ValueError:
        return False
    known, numbers = facts["known"], set(facts["numbers"])
    return (
        "\n" not in answer
        and isinstance(record, dict)
        and record.keys() == known.keys() | numbers
        and all(record[name] == value for name, value in known.items())
        and all(type(record[name]) is int for name in numbers)
    )


def _is_items(answer: str, facts: Mapping[str, Any]) -> bool:
    mark = facts["mark"]
    listed = _marked(answer, mark) if mark else [piece.strip() for piece in answer.rstrip(".").split(",")]
    return listed == list(facts["wanted"])


def _is_some_of(answer: str, facts: Mapping[str, Any]) -> bool:
    listed, pool = _marked(answer, facts["mark"]), set(facts["pool"])
    return len(listed) == len(set(listed)) == facts["n"] and set(listed) <= pool


def _marked(answer: str, mark: str) -> list[str]:
    entries = []
    for n, line in enumerate(_lines(answer), start=1):
        start = f"{n}. " if mark == "1" else f"{mark} "
        if not line.startswith(start):
            return []
        entries.append(line.removeprefix(start).strip())
    return entries


def _is_story(answer: str, facts: Mapping[str, Any]) -> bool:
    sentences = _sentences(answer)
    return (
        3 <= len(sentences) <= 8
        and len(set(sentences)) == len(sentences)
        and _has_terms(answer, tuple(facts["terms"]))
    )


def _is_haiku(answer: str, facts: Mapping[str, Any]) -> bool:
    lines = _lines(answer)
    return (
        len(lines) == len(set(lines)) == 3
        and set(lines) <= set(facts["lines"])
        and _has_terms(answer, (facts["term"],))
    )


def _is_bullets(answer: str, facts: Mapping[str, Any]) -> bool:
    points = _marked(answer, "-")
    return len(points) == len(set(points)) == facts["n"] and _has_terms(answer, tuple(facts["terms"]))


def _is_sentences(answer: str, facts: Mapping[str, Any]) -> bool:
    sentences = _sentences(answer)
    return len(sentences) == len(set(sentences)) == facts["n"] and _has_terms(answer, tuple(facts["terms"]))


def _is_one_sentence(answer: str, facts: Mapping[str, Any]) -> bool:
    words = set(_WORD.findall(answer.casefold()))
    n_named = sum(word in words for word in facts["words"])
    return len(_sentences(answer)) == 1 and 3 * n_named >= 2 * len(facts["words"])


@functools.cache
def _format() -> Format:
    return derive(template())


def _is_calls(answer: str, facts: Mapping[str, Any]) -> bool:
    splitter = Splitter(_format(), tools=facts["tools"])
    parsed = ParsedAnswer().add([*splitter.feed(answer), *splitter.end()])
    called = [[call.name, json.loads(call.arguments or "null")] for _, call in sorted(parsed.calls.items())]
    return not parsed.content.strip() and called == facts["wanted"]


_CHECKERS: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "exact": _is_exact,
    "verbatim": _is_verbatim,
    "has": _has,
    "number": _is_number,
    "json": _is_json,
    "json_record": _is_json_record,
    "items": _is_items,
    "some_of": _is_some_of,
    "story": _is_story,
    "haiku": _is_haiku,
    "bullets": _is_bullets,
    "sentences": _is_sentences,
    "one_sentence": _is_one_sentence,
    "calls": _is_calls,
}
