"""No test sleeps: it waits for what it is about, or tells a Clock. What polls is in tests/waiting.py."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "workloads/tests", "training/tests")
MAY = {
    "tests/waiting.py": "the one that polls",
    "tests/chaos": "a program that sends load on a real clock",
    "tests/fuzz": "a program that sends load on a real clock",
    "tests/page/film.py": "a program that takes so many pictures a second",
    "tests/front/fronted.py": "a replica that is slow on purpose",
    "tests/unit/test_link.py": "polls",
}


def sleeps(source):
    """Return the lines that sleep; `asyncio.sleep(0)` lets others run and is none."""
    if "sleep" not in source and "wait_for_timeout" not in source:
        return []  # without reading it as Python, which takes time
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _sleeps(ast.unparse(call.func), call.args)]


def _sleeps(function, args):
    if function in {"asyncio.sleep", "anyio.sleep", "sleep"}:
        return not (isinstance(args[0], ast.Constant) and args[0].value == 0)
    return function == "time.sleep" or function.endswith(".wait_for_timeout")


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("time.sleep(0)", True),
        ("await asyncio.sleep(0.1)", True),
        ("await asyncio.sleep(PAUSE_S)", True),
        ("await asyncio.sleep(0)", False),
        ("page.wait_for_timeout(100)", True),
        ("page.wait_for_function('ready')", False),
        ("clock.sleep(1)", False),
    ],
)
def test_what_a_sleep_is(line, is_one):
    assert bool(sleeps(f"async def f():\n    {line}")) == is_one


def test_no_test_sleeps():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 300
    found = {
        f"{name}:{line}"
        for path in paths
        if not (name := path.relative_to(ROOT).as_posix()).startswith(tuple(MAY))
        for line in sleeps(path.read_text(encoding="utf-8"))
    }
    assert not found
