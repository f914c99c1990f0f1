"""Settings that make no sense are refused in one line that names one of them, before anything starts."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cobali_ray.actors import serving
from cobali_ray.cli import serve
from cobali_ray.errors import CobaliError
from cobali_ray.settings import PLACES

ROOT = Path(__file__).parents[2]

SEED = 22
MOST_BYTES = 6 << 30
WORDS = r"""
0 | -1 | 1 | 16 | 2147483647 | 2147483648 | 1e30 | 1.0e+30 | -1.0e+30 | .nan | .inf | -.inf | 1e-400
null | ~ | true | off | '' | ' ' | ',' | "\0" | "\ud800" | "a\0b" | [] | [[]] | {} | [a, b] | {1: 2}
*x | &x [*x] | 0-999999999 | 999999999 | 3-1 | 0-8191 | - | 0,,1 | ٣ | ² | 2001-99-99 | 2001-01-01
/ | /etc/passwd | /dev/zero | /dev/null | /dev/full | /nowhere/at/all | /proc/self/mem | ~nobody_at_all/x | .
builtin:tiny | builtin:nothing | hf:// | x.gguf | http:// | http://[ | file:///etc/passwd
{a: {b: {c: {}}}} | {a: {n_slots: many}} | {a: {engines: {}}} | {a: null, b: null} | {'': {}}
{"\0": {file: x}} | !!binary aGk= | !!set {a, b} | !!python/object/apply:os.system [x]
q8_0 | f32 | auto | cuda | on_demand
"""
LAUGHS = "{a0: &a0 [x], " + ", ".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]" for i in range(1, 10)) + "}"
"""A few hundred bytes that would be written as 387 million."""
LONG = ["0x" + "f" * 5000, "9" * 4000, "0-" + "9" * 5000, "/" + "a" * 5000, "x" * 9999]
VALUES = [word.strip() for word in WORDS.replace("\n", "|").split("|") if word.strip()]
VALUES += [*LONG, "[" * 400 + "]" * 400, "{" * 400, LAUGHS]
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from tests.unit.test_settings_fuzz import try_all
print(*try_all(int(sys.argv[2])), "tried", sep="\\n")
"""


def cases(n_cases):
    """Return for each case settings as `NAME=VALUE`: every one of them, with others beside it at random."""
    draw, names = random.Random(SEED), list(PLACES)
    for i in range(n_cases):
        chosen = [names[i % len(names)], *draw.sample(names, draw.choice([0, 0, 0, 1, 2]))]
        yield [f"{name}={draw.choice(VALUES)}" for name in dict.fromkeys(chosen)]


def trouble(case):
    """Read settings as `cobali serve` does before it starts; return what is wrong with the answer."""
    try:
        serve(setting=case)
    except CobaliError as error:
        said = str(error)
    except Exception as error:
        return repr(error)
    else:
        return ""
    if "\n" in said or len(said) > 5000:
        return f"long: {said}"
    return "" if any(one.partition("=")[0] in said for one in case) else f"not named: {said}"


def try_all(n_cases):
    """Return what is wrong, of so many cases."""
    serving.serve_forever = lambda read, **_: read(lambda *_: None)
    found = [([one[:90] for one in case], trouble(case)) for case in cases(n_cases)]
    return [f"{case} {wrong[:300]!r}" for case, wrong in found if wrong]


@pytest.mark.parametrize("n_cases", [len(PLACES), pytest.param(1000, marks=pytest.mark.thorough)])
def test_settings_that_make_no_sense_are_refused_by_name(tmp_path, n_cases):
    """In a process with as much memory as a small machine has, which starts and downloads nothing."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COBALI_")}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(MOST_BYTES), str(n_cases)],
        env=environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    assert lines == ["tried"], done.stderr[-2000:]
