"""Private names of Ray's: this version has them, and one that lacks one is told what to install."""

import ast
import asyncio
import warnings
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from sources import SERVER, imports

from cobali_ray.actors import ray_private
from cobali_ray.errors import StartError


@pytest.mark.parametrize("module", ["json", "no_such_module"])
def test_a_version_that_lacks_a_name_ends_the_start_with_what_to_install(module):
    with pytest.raises(StartError, match=rf"has no {module}.*pip install 'ray\[serve\]==2\.60\.\*'"):
        ray_private._having(module, "no_such_name")
    with pytest.raises(StartError, match=rf"has no {module}.*pip install 'ray\[serve\]==2\.60\.\*'"):
        ray_private._having(module, "JSONDecoder.no_such_name")


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
        for name in names:
            attrgetter(name)(found)  # AttributeError: it is gone


async def test_no_more_of_a_body_is_read_than_the_application_takes(monkeypatch):
    with warnings.catch_warnings(action="ignore"):  # Ray's own
        constants = import_module("ray.serve._private.constants")
        proxy = import_module("ray.serve._private.direct_ingress_http_util").ASGIDIReceiveProxy
    monkeypatch.setattr(constants, "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", False)
    monkeypatch.setattr(proxy, "queue", proxy.queue)
    ray_private.read_bodies_as_taken()
    n_read = 0

    async def receive():
        nonlocal n_read
        n_read += 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": True, "n": n_read}

    take = proxy({"type": "http"}, receive, asyncio.get_running_loop())
    reading = take.fetch_until_disconnect_task()
    taken = [(await take())["n"] for _ in range(100)]
    for _ in range(1000):
        await asyncio.sleep(0)
    reading.cancel()
    assert taken == list(range(1, 101))
    assert n_read == 100 + ray_private.BODY_PIECES + 1


def test_nobody_else_knows_them():
    private = ("ray._private", "ray._raylet", "ray._common", "ray.serve._private")
    for path, nodes in imports(SERVER).items():
        names = [getattr(node, "module", "") or "" for node in nodes]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        found = [name for name in names if name.startswith(private)]
        assert path.name == "ray_private.py" or not found, path
