"""Numba's CUDA target is numba-cuda, or numba-cuda-mlir where the program has imported that or has no other."""

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from pyncclx import NotSupported
from pyncclx.backends.compilers import numba_cuda, numba_mlir, numba_packages
from pyncclx.backends.compilers.numba_packages import NUMBA_CUDA, NUMBA_CUDA_MLIR

CACHED = (numba_packages.chosen, numba_cuda.target, numba_cuda.address_function)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    """A process that has not compiled anything, and after it one that may choose anew."""
    for each in CACHED:
        each.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == NUMBA_CUDA_MLIR.top]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for each in CACHED:
        each.cache_clear()


def install(monkeypatch, *tops):
    """Make these the packages that are installed, and no others."""
    found = importlib.util.find_spec
    names = {NUMBA_CUDA.top, NUMBA_CUDA_MLIR.top}
    spec = {name: ModuleSpec(name, None) if name in tops else None for name in names}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec[name] if name in spec else found(name))


def imported(monkeypatch):
    """Put a successor's imitation among the modules that the program has imported."""
    made = {name: ModuleType(name) for name in ("numba_cuda_mlir", *vars(NUMBA_CUDA_MLIR).values())}
    del made[NUMBA_CUDA_MLIR.distribution]
    made["numba_cuda_mlir"].__version__ = "0.6.0"
    cuda = made[NUMBA_CUDA_MLIR.cuda]
    cuda.jit = lambda function, **options: SimpleNamespace(function=function, **options)
    made[NUMBA_CUDA_MLIR.types].uint64 = int
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return cuda


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (["numba_cuda", "numba_cuda_mlir"], NUMBA_CUDA),
        (["numba_cuda_mlir"], NUMBA_CUDA_MLIR),
        (["numba_cuda"], NUMBA_CUDA),
        ([], NUMBA_CUDA),
    ],
    ids=["both", "the successor", "numba-cuda", "none"],
)
def test_which_is_chosen(monkeypatch, installed, expected):
    install(monkeypatch, *installed)
    assert numba_packages.chosen() is expected


def test_the_one_that_the_program_has_imported(monkeypatch):
    install(monkeypatch, "numba_cuda", "numba_cuda_mlir")
    cuda = imported(monkeypatch)
    assert numba_packages.chosen() is NUMBA_CUDA_MLIR
    assert numba_packages.chosen().version == "numba-cuda-mlir 0.6.0"
    assert numba_cuda.target() is cuda
    assert numba_cuda.types() is sys.modules["numba_cuda_mlir.cuda.types"]
    inlined = numba_cuda.inlined(abs)
    assert (inlined.function, inlined.device, inlined.inline) == (abs, True, "always")
    array = SimpleNamespace(ctypes=SimpleNamespace(data=4096))
    assert numba_cuda.address_function().function(array) == 4096


def test_declared_functions_are_called_by_a_plain_name(monkeypatch):
    """numba-cuda-mlir 0.6 does not find them as attributes of a module."""
    imported(monkeypatch)

    def declared(a, b):
        return a + b

    declared.sig = SimpleNamespace(args=("uint64", "int32"))
    assert numba_mlir.called(declared, "pyncclx_sum", returns=True).function(1, 2) == 3
    assert numba_mlir.called(declared, "pyncclx_fence", returns=False).function(1, 2) is None


def test_neither_is_installed(monkeypatch):
    install(monkeypatch)
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    with pytest.raises(NotSupported, match="numba-cuda cannot be imported"):
        numba_cuda.target()


# numba-cuda-mlir 0.6 asks for the architecture of the current GPU, even where another is given.
PROGRAM = """
import numpy as np
import numba_cuda_mlir.tools
numba_cuda_mlir.tools._cached_cc = (9, 0)
from numba_cuda_mlir import cuda
from pyncclx.backends.compilers import nvrtc
from pyncclx.backends.compilers import numba_cuda
from pyncclx.backends.compilers import numba_functions
from pyncclx.numba_kernels import compiled
import pyncclx.device as d

assert numba_cuda.target() is cuda
for kernel in (("numba_alltoallv",), ("numba_allreduce_two_shot", "int64", "MIN")):
    code = compiled.code_of(kernel[0], kernel[1:], 4, "sm_90")
    around = nvrtc.compile_cached(compiled.FILE, [compiled.KERNEL], "sm_90", "-dlto")
    assert nvrtc.link(around, code, "sm_90").cubin

def larger(a, b, out):
    if a.value >= b.value:
        out.value, out.place = a.value, a.place
    else:
        out.value, out.place = b.value, b.place

for dtype in ("?", "i1", "f2", "f8", "c16"):
    assert numba_functions.for_gpu(lambda a, b: a + b, np.dtype(dtype), "sm_90")
assert numba_functions.for_gpu(larger, np.dtype([("value", "f4"), ("place", "i4")]), "sm_90")
rows = numba_functions.RowTypes(np.dtype("f4"), np.dtype("i1"), (np.dtype("f4"),))
assert numba_functions.for_gpu(lambda x, row, column, scale: x / scale[row], rows, "sm_90")
try:
    numba_functions.for_gpu(lambda a, b: a.upper(), np.dtype("f4"), "sm_90")
except TypeError as error:
    assert "Op: Numba cannot compile" in str(error)
else:
    raise AssertionError("compiled")

def shift(team, array):
    d.fence()
    d.put_block(team, d.address(array), d.address(array), 4, 1)
    d.pointer(d.address(array), np.float32)[1] = 3

types = numba_cuda.types()
assert cuda.compile_cubin(shift, types.none(types.uint64, types.Array(types.float32, 1, "C")), chip="sm_90")
"""


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda_mlir") is None, reason="needs numba-cuda-mlir")
def test_the_successor_compiles_all_that_is_written_in_python():
    pytest.importorskip("cuda.bindings.nvjitlink", reason="needs nvidia-nvjitlink")
    environment = os.environ | {"PYNCCLX_DEVICE": "host"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
