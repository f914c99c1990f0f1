"""One name, one meaning: no class is defined twice, and code keeps to the words of the glossary."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "cobali_ray", ROOT / "workloads" / "cobali_workloads")


def trees():
    """Return the syntax tree of each module, by path."""
    paths = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def places_of_classes(modules):
    """Return where each class is defined."""
    places = defaultdict(list)
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    return places


def names_in(tree):
    """Yield the names of variables, parameters, attributes, functions, classes and keywords of calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name


def other_words(text):
    """Return the names in the last column of the glossary."""
    rows = re.findall(r"^\|.*\|([^|]*)\|$", text.partition("## Glossary")[2], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def misnamed(names, words):
    """Return names that are one of the words, or, of words in capitals, begin with one."""
    begins = tuple(f"{word}_" for word in words if word.isupper())
    return {name for name in names if name in words or (begins and name.lstrip("_").startswith(begins))}


def test_a_class_has_a_name_of_its_own():
    places = places_of_classes(trees())
    assert len(places) > 500
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_code_uses_the_words_of_the_glossary():
    words = other_words((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert {"found", "told", "MOST"} <= words
    wrong = {path: names for path, tree in trees().items() if (names := misnamed(set(names_in(tree)), words))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        pytest.param("found = 1", {"found"}, id="variable"),
        pytest.param("def f(found): pass", {"found"}, id="parameter"),
        pytest.param("f(found=1)", {"found"}, id="keyword"),
        pytest.param("one.found", {"found"}, id="attribute"),
        pytest.param("def found(): pass", {"found"}, id="function"),
        pytest.param("_MOST_S = 1", {"_MOST_S"}, id="constant"),
        pytest.param("foundation, ALMOST_S = 'found', 1  # found", set(), id="none"),
    ],
)
def test_other_words_are_seen(code, names):
    assert misnamed(set(names_in(ast.parse(code))), {"found", "MOST"}) == names


def test_a_class_that_is_defined_twice_is_seen():
    modules = {
        "a.py": ast.parse("class A: pass\nclass B: pass"),
        "b.py": ast.parse("def f():\n    class A: pass"),
    }
    assert places_of_classes(modules) == {"A": ["a.py", "b.py"], "B": ["a.py"]}
