"""Which selector is used, and whether the kernels compile for the GPUs that we name."""

import shutil
import subprocess
from itertools import count

import pytest

from cobali_ray.backend.select import HostSelector, choose_selector
from cobali_ray.backend.select_cuda import SOURCE, open_kernels
from cobali_ray.errors import ConfigError

KERNELS = ("select_continuous", "select_sequential", "gather_metadata")
ARCHITECTURES = ("sm_89", "sm_90")


class Stopwatch:
    """A clock that stands still except where somebody works."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class HostOnADevice(HostSelector):
    """Answers as kernels do, and takes its time."""

    def __init__(self, stopwatch, takes_s):
        self._stopwatch, self._takes_s = stopwatch, takes_s

    def continuous(self, requests, budget):
        self._stopwatch.now_s += self._takes_s
        chosen = super().continuous(requests, budget)
        return chosen.index, chosen.token, chosen.position, chosen.slot_id


def has_device():
    try:
        import cupy
    except ImportError:
        return False
    return cupy.cuda.is_available()


def no_device():
    raise ConfigError("selector", "cuda: no device")


@pytest.fixture
def slow_host(monkeypatch):
    """Let the host take one second for each selection."""
    stopwatch, select = Stopwatch(), HostSelector.continuous

    def continuous(self, requests, budget):
        if type(self) is HostSelector:
            stopwatch.now_s += 1.0
        return select(self, requests, budget)

    monkeypatch.setattr(HostSelector, "continuous", continuous)
    return stopwatch


@pytest.mark.parametrize(("takes_s", "expected"), [(0.5, "cuda"), (1.0, "host"), (2.0, "host")])
def test_auto_takes_the_faster_and_the_host_if_equal(slow_host, takes_s, expected):
    device = HostOnADevice(slow_host, takes_s)
    chosen = choose_selector("auto", n_requests=16, open_device=lambda: device, now=slow_host)
    assert chosen.name == expected


def test_auto_without_a_device_is_the_host():
    assert choose_selector("auto", n_requests=16, open_device=no_device).name == "host"


def test_host_never_looks_for_a_device():
    looked = count()
    choose_selector("host", n_requests=16, open_device=lambda: next(looked))
    assert next(looked) == 0


def test_cuda_is_taken_at_its_word():
    device = HostOnADevice(Stopwatch(), 9.0)
    assert choose_selector("cuda", n_requests=16, open_device=lambda: device).name == "cuda"


def test_cuda_asked_for_in_vain_names_the_setting():
    with pytest.raises(ConfigError) as caught:
        choose_selector("cuda", n_requests=16, open_device=no_device)
    assert caught.value.setting == "selector"


def test_a_machine_without_cuda_says_what_is_missing():
    if has_device():
        pytest.skip("there is a CUDA device: tests/gpu runs the kernels on it")
    with pytest.raises(ConfigError, match="CuPy") as caught:
        open_kernels()
    assert caught.value.setting == "selector"


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
