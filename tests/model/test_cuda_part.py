"""llama.cpp's part for NVIDIA GPUs where there is no driver: one clear line, and the CPU."""

import ctypes
import shutil
import subprocess

import pytest
import structlog

from cobali_ray.backend import library
from cobali_ray.backend.devices import has_gpu
from tools import cuda_build

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def compiled(part, text, *words):
    part.parent.mkdir(parents=True, exist_ok=True)
    source = part.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(part), str(source), *words], check=True)
    return part


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has NVIDIA's driver")
def test_without_a_driver_one_line_says_so_and_the_cpu_computes(tmp_path):
    cuda = tmp_path / "cu13"
    (cuda / "lib").mkdir(parents=True)
    for name in cuda_build.LINKED:
        (cuda / "lib" / f"lib{name}.so.13").touch()
    cuda_build.complete(cuda)
    cuda_build.complete(cuda)  # as after an interruption
    assert (cuda / "lib64" / "libcublas.so").resolve() == cuda / "lib" / "libcublas.so.13"
    words = [f"-L{cuda / 'lib64' / 'stubs'}", cuda_build.LINKER_FLAGS, "-lcuda"]
    part = compiled(library.cuda_part(tmp_path / "llama_cpp"), "", *words)
    library.load()
    with structlog.testing.capture_logs() as said:
        library._add(part)
    (line,) = said
    assert (line["event"], line["log_level"]) == ("no_cuda", "warning")
    assert "stay on the CPU, as libcuda.so.1: cannot open" in line["detail"]
    assert not has_gpu()


def test_a_part_that_can_be_loaded_is_asked_for_its_devices(tmp_path):
    text = "int asked; void *ggml_backend_init(void) { asked++; return 0; }"
    part = compiled(library.cuda_part(tmp_path), text)
    library.load()
    library._add(part)
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(part)), "asked").value == 1
