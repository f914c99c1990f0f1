"""Which selector is used, and whether the kernels compile for the GPUs that we name."""

import shutil
import subprocess

import pytest

from cobali_ray.backend.select import choose_select
from cobali_ray.backend.select_cuda import SOURCE
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.errors import ConfigError

KERNELS = ("select_continuous", "gather_metadata")
ARCHITECTURES = ("sm_89", "sm_90")


def has_device():
    try:
        import cupy
    except ImportError:
        return False
    return cupy.cuda.is_available()


@pytest.mark.skipif(has_device(), reason="there is a CUDA device")
def test_cuda_asked_for_in_vain_names_the_setting_and_what_is_missing():
    with pytest.raises(ConfigError, match=r"^selector: .*(CuPy|kernels)"):
        choose_select("cuda")


def sequence(slot_id, *, decoding):
    one = Sequence(Request(request_id=str(slot_id), prompt=(1, 2, 3), max_tokens=3), arrived_s=0.0)
    one.slot_id, one.n_prefilled, one.decoding = slot_id, 2, decoding
    return one


@pytest.mark.parametrize("name", ["host", "numpy"])
def test_who_decodes_is_chosen_in_slot_order(name):
    a, b, c = sequence(0, decoding=True), sequence(2, decoding=False), sequence(3, decoding=True)
    select = choose_select(name)
    assert select([a, None, b, c], 4) == [a, c]
    assert select([a, None, b, c], 1) == [a]
    assert select([None, None], 2) == []
    assert select([a], 1) == [a]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_the_kernels(architecture):
    nvrtc = pytest.importorskip("cupy", reason="CuPy brings NVRTC (extra cuda)").cuda.nvrtc
    program = nvrtc.createProgram(SOURCE, "select.cu", [], [])
    try:
        nvrtc.compileProgram(program, (f"-arch={architecture}", "--std=c++17"))
        cubin = nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
    assert all(name.encode() in cubin for name in KERNELS)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_compiles_the_kernels_without_a_warning(tmp_path):
    code, binary = tmp_path / "select.cu", tmp_path / "select.fatbin"
    code.write_text(SOURCE)
    targets = [f"-gencode=arch=compute_{sm[3:]},code={sm}" for sm in map(str, ARCHITECTURES)]
    subprocess.run(
        [shutil.which("nvcc"), "-Werror", "all-warnings", "-fatbin", *targets, "-o", binary, code], check=True
    )
    assert binary.stat().st_size > 0
