"""No module imports, by whatever way, one that imports it; not for types either."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "cobali_ray", ROOT / "workloads" / "cobali_workloads")


def modules():
    found = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports():
    """Return what each module imports of ours."""
    known = modules()
    found = {}
    for name, path in known.items():
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
                wanted |= below or {node.module}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        found[name] = (wanted & known.keys()) - {name}
    return found


def circle(graph):
    """Return modules that import each other in a circle, if there are any."""
    done, way = set(), []

    def look(name):
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        way.append(name)
        for other in sorted(graph[name]):
            if found := look(other):
                return found
        done.add(way.pop())
        return []

    return next((found for name in sorted(graph) if (found := look(name))), [])


def test_there_is_no_circle():
    graph = imports()
    assert len(graph) > 300
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}, ["a", "b", "c", "a"]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
    ],
)
def test_circles_are_found(graph, found):
    assert circle(graph) == found
