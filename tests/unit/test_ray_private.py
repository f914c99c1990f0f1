"""Private names of Ray's: this version has them, and one that lacks one is told what to install."""

import ast
import warnings
from importlib import import_module
from pathlib import Path

import pytest
from sources import SERVER, imports

from cobali_ray.actors import ray_private
from cobali_ray.errors import StartError


@pytest.mark.parametrize("module", ["json", "no_such_module"])
def test_a_version_that_lacks_a_name_ends_the_start_with_what_to_install(module):
    with pytest.raises(StartError, match=rf"has no {module}.*pip install 'ray\[serve\]==2\.60\.\*'"):
        ray_private._having(module, "no_such_name")


def test_every_name_is_there_before_anything_is_replaced():
    calls = [
        [word.value for word in node.args if isinstance(word, ast.Constant)]
        for node in ast.walk(ast.parse(Path(ray_private.__file__).read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_having"
    ]
    asked = [words for words in calls if words and words[0].startswith("ray.")]
    assert len(asked) >= 10
    for module, *names in asked:
        with warnings.catch_warnings(action="ignore"):  # Ray's own
            found = import_module(module)
        assert [name for name in names if not hasattr(found, name)] == []


def test_nobody_else_knows_them():
    private = ("ray._private", "ray._raylet", "ray._common", "ray.serve._private")
    for path, nodes in imports(SERVER).items():
        names = [getattr(node, "module", "") or "" for node in nodes]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        found = [name for name in names if name.startswith(private)]
        assert path.name == "ray_private.py" or not found, path
