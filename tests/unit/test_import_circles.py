"""No module imports, by whatever way, one that imports it; not for types either."""

import ast
from graphlib import TopologicalSorter

from sources import LABORATORY, SERVER, imports


def names_of(package):
    """Return the full name of each module of a package."""
    return {
        path: ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in imports(package)
    }


def imported(node, known):
    """Return which modules of ours an `import` means."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & known
    below = {f"{node.module}.{alias.name}" for alias in node.names} & known
    return below or {node.module} & known


def test_there_is_no_circle():
    names = names_of(SERVER) | names_of(LABORATORY)
    known = set(names.values())
    graph = {
        names[path]: set().union(*(imported(node, known) for node in nodes)) - {names[path]}
        for package in (SERVER, LABORATORY)
        for path, nodes in imports(package).items()
    }
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()  # a circle is an error that names it
