"""What both packages import: from others what pyproject.toml declares, from each other in no circle."""

import ast
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import distribution
from itertools import chain

import pytest
from sources import LABORATORY, ROOT, SERVER, imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BEHIND = {
    "otel": ("telemetry/tracing.py",),
    "cuda": ("backend/select_cuda.py",),
    "postgres": ("store/postgres.py",),
}
"""Who may import the packages of an extra. Nobody imports these modules before asking for the extra."""


def names(requirements):
    return {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}


def providers(distributions):
    """Return which distribution each module comes from, by the files that it installs."""
    found = {}
    for name in distributions:
        for file in distribution(name).files or ():
            if file.suffix in {".py", ".so"}:
                module = [*file.parts[:-1], file.name.partition(".")[0]]
                found[".".join(module).removesuffix(".__init__")] = name
    return found


def imported(nodes):
    """Return the full names of the modules of other packages that these imports name."""
    found = set()
    for node in nodes:
        found |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}
    ours = {"cobali_ray", "__future__"} | sys.stdlib_module_names
    return {module for module in found if module.partition(".")[0] not in ours}


def provider(module, known):
    """Return the distribution of a module, or of the nearest package around it."""
    while module and module not in known:
        module = module.rpartition(".")[0]
    return known.get(module)


@pytest.fixture(scope="module")
def used():
    """Who imports each distribution, and which imports no declared one provides."""
    known = providers(names(chain(PROJECT["dependencies"], *EXTRAS.values())))
    users = {}
    for path, nodes in imports(SERVER).items():
        for module in imported(nodes):
            users.setdefault(provider(module, known) or f"nobody has {module}", set()).add(
                str(path.relative_to(SERVER))
            )
    return users


def test_declared_is_what_is_imported(used):
    declared = names(chain(PROJECT["dependencies"], *EXTRAS.values()))
    assert set(used) == declared


@pytest.mark.parametrize("extra", EXTRAS)
def test_only_its_own_modules_import_an_extra(used, extra):
    for name in names(EXTRAS[extra]):
        assert [user for user in used[name] if not user.startswith(BEHIND[extra])] == []


def test_the_laboratory_imports_what_it_or_the_server_declares():
    own = tomllib.loads((LABORATORY.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = names(chain(own, PROJECT["dependencies"], *EXTRAS.values()))
    known = providers(declared - {"cobali-ray"})
    modules = {
        module
        for nodes in imports(LABORATORY).values()
        for module in imported(nodes)
        if module.partition(".")[0] != "cobali_workloads"
    }
    assert {module for module in modules if provider(module, known) is None} == set()


def modules_of(package):
    """Return the full name of each module of a package."""
    return {
        path: ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in imports(package)
    }


def own_modules(node, known):
    """Return which modules of ours an `import` means."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & known
    below = {f"{node.module}.{alias.name}" for alias in node.names} & known
    return below or {node.module} & known


def test_no_module_imports_by_whatever_way_one_that_imports_it_not_for_types_either():
    names = modules_of(SERVER) | modules_of(LABORATORY)
    known = set(names.values())
    graph = {
        names[path]: set().union(*(own_modules(node, known) for node in nodes)) - {names[path]}
        for package in (SERVER, LABORATORY)
        for path, nodes in imports(package).items()
    }
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()  # a circle is an error that names it
