"""The glossary against the code: a class name has one meaning, and ruled-out words name nothing."""

import ast
import re
from collections import defaultdict

import pytest
from sources import LABORATORY, ROOT, SERVER, trees

ALLOWED = {
    "ModelNotFoundError": "as HTTP and everybody else say it",
    "n_said": "a field of records and traces, which others read",
}
"""Names with a word that the glossary rules out, and why they stay."""


def modules():
    both = trees(SERVER) | trees(LABORATORY)
    return [(path.relative_to(ROOT), tree) for path, tree in both.items()]


def ruled_out(text):
    """Words between backticks in the last column of the glossary's table."""
    rows = re.findall(r"^\|.*\|$", text.partition("\n## Glossary\n")[2].partition("\n## ")[0], re.MULTILINE)
    return {word for row in rows[2:] for word in re.findall(r"`(\w+)`", row.split("|")[-2])}


def words_of(name):
    """Parts of a name: those of a constant as they are, all others in lower case."""
    if name.isupper():
        return set(name.split("_"))
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def names_in(tree):
    """Names that a module gives: to classes, functions, parameters, attributes and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.Name(ctx=ast.Store()):
                yield node.id


def offences(path, tree, words):
    return {
        f"{path}: {name}"
        for name in names_in(tree)
        if name not in ALLOWED and words & words_of(name.strip("_"))
    }


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_name_has_a_word_that_the_glossary_rules_out():
    words = ruled_out((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert {"told", "MOST"} <= words, "the glossary has moved"
    found = set().union(*(offences(path, tree, words) for path, tree in modules()))
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("class Told: pass", ["Told"]),
        ("class A:\n    def told_name(self): pass", ["told_name"]),
        ("class A:\n    def __init__(self): self.n_told = 0", ["n_told"]),
        ("class A:\n    told: int = 0", ["told"]),
        ("MOST_ROWS = 1", ["MOST_ROWS"]),
        ("def f(told):\n    n_told = told", ["told", "n_told"]),
        ("class _Told: pass\n_MOST = 1", ["_Told", "_MOST"]),
        ("almost = mostly = untold = 1", []),
    ],
)
def test_what_is_noticed(code, bad):
    assert offences("x", ast.parse(code), {"told", "MOST"}) == {f"x: {name}" for name in bad}
