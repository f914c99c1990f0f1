"""What `cobali devices` says that a model takes of this machine is what a process then has more, by family.

The families of archs.py, eight times as wide, so that their caches take tens of MB; each is opened and filled
in a process of its own. `-s` shows the table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import archs
import pytest

pytestmark = [pytest.mark.model, pytest.mark.thorough, pytest.mark.timeout(600)]

TIMES = "8"
BUILTINS = ["builtin:tiny", "builtin:synthetic-tiny", "builtin:synthetic-tiny-152k", "builtin:synthetic-head"]
CHILD = """
import json, sys
from array import array
from pathlib import Path

name, folder = sys.argv[1], Path(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import archs
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.devices import open_devices
from cobali_ray.backend.fit import need_here
from cobali_ray.core.plan.plan import Span
from cobali_ray.engine.opening import llama_config, open_backend
from cobali_ray.models.registry import resolve
from cobali_ray.settings import read_settings

def held():
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return (int(fields["RssAnon"].split()[0]) + int(fields["RssFile"].split()[0])) << 10

def fill(backend):
    batch, n, n_slots = TickBatch(backend.n_batch), backend.n_ctx_slot, backend.n_slots
    text, step = array("i", [i % 500 for i in range(n)]), backend.n_batch // n_slots
    passes = [[Span(i, 0, step, True) for i in range(n_slots)]]
    passes += [[Span(0, i, min(512, n - i), False)] for i in range(step, n, 512)]  # one slot whole
    for spans in passes:
        batch.fill(tuple(spans), [text] * len(spans))
        backend.forward(batch)

def settings_of(path):
    return read_settings({"model": str(path), "n_slots": 64, "n_ctx": 1024, "threads_wait": "passive"})

path = resolve(name) if ":" in name else archs.write(folder / "m.gguf", name)
small = resolve("builtin:synthetic-tiny")
open_backend(settings_of(small), small).close()  # what the library takes once
settings = settings_of(path)
before = held()
backend = open_backend(settings, path)
fill(backend)
taken = held() - before
backend.close()
config = llama_config(settings, path)
need = need_here(config, open_devices(config))
print(json.dumps({"arch": name if ":" in name else archs.FAMILIES[name].arch, "taken": taken,
                  "told": need._asdict(), "counted": config.cache_bytes}))
"""


@pytest.fixture(scope="module")
def show():
    """Write a row of the table."""
    head = "| model | weights | cache | for computing | told, MB | measured, MB | measured / told |"
    sys.stdout.write("\n".join(["", head, "|---" * 7 + "|", ""]))
    return lambda row: (sys.stdout.write(f"{row}\n"), sys.stdout.flush())


@pytest.mark.parametrize("name", [*archs.FAMILIES, *BUILTINS])
def test_a_process_has_more_what_was_told(tmp_path, show, name):
    command = [sys.executable, "-c", CHILD, name, str(tmp_path), str(Path(__file__).parent)]
    environ = os.environ | {"ARCHS_TIMES": TIMES}
    done = subprocess.run(command, env=environ, capture_output=True, check=False, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    told = found["told"]
    parts = [told[name] / 1e6 for name in ("weights", "cells", "buffers")]
    ratio = found["taken"] / 1e6 / sum(parts)
    cells = " | ".join(f"{n:.1f}" for n in (*parts, sum(parts), found["taken"] / 1e6))
    show(f"| `{found['arch']}` | {cells} | {ratio:.3f} |")
    assert ratio == pytest.approx(1, abs=0.05)
