"""Operators and row transforms in Python, compiled for GPUs without one: no call is left in the machine code."""

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import pyncclx
from pyncclx import NotSupported
from pyncclx.arrays.datatypes import TABLE
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES, check_records, instantiation
from pyncclx.memory.layout import PACK_NBYTES, plan
from pyncclx.operators import bound_op
from support.sample import ALL, some

nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")
numba_cuda = pytest.importorskip("pyncclx.backends.compilers.numba_cuda")
numba_functions = pytest.importorskip("pyncclx.backends.compilers.numba_functions")
pytest.importorskip("numba.cuda", reason="needs numba-cuda")
pytest.importorskip("llvmlite")

_path = Path(__file__).resolve().parents[3] / "examples" / "operators" / "operators_gallery.py"
_spec = importlib.util.spec_from_file_location("operators_gallery", _path)
gallery = sys.modules["operators_gallery"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gallery)

ARCHITECTURE = "sm_90"
# What kernels call out of their loops, what divides, and the loop that has all the registers.
RARE = r"load_bytes|store_bytes|one_by_one|record_failure|Patience|__cuda_sm20_\w+|fold_tiles"


def disassembler():
    wheel = Path(nvrtc.nvrtc.__file__).parents[2] / "nvidia"
    found = [str(path) for path in sorted(wheel.glob("*/bin/nvdisasm"))]
    return found[0] if found else shutil.which("nvdisasm")


def operator(op, dtype=None):
    """An operator for elements of its own dtype, or of another."""
    return bound_op.bound_op(op.fn, dtype or op.dtype)


ALLREDUCE = "collectives/allreduce.cu"
# The last one, of long messages, takes the compiler longer than the others together.
ALL_KERNELS = FILES[ALLREDUCE].kernels
KERNELS = ALL_KERNELS if ALL else ALL_KERNELS[:-1]


def linked(op, several, dtype=None):
    """The binary of kernels with an operator."""
    made = operator(op, dtype)
    source, names = kernels._linked_names(made, ALLREDUCE, several)
    code = numba_functions.for_gpu(made.fn, made.types, ARCHITECTURE)
    lto = nvrtc.compile_kernels(source, sorted(set(names.values())), ARCHITECTURE, "-dlto")
    return nvrtc.link(lto, code, ARCHITECTURE, "-verbose")


def machine_code(binary, tmp_path):
    """The instructions of each kernel, by its C++ name; symbols in them are of no account."""
    cubin = tmp_path / "kernels.cubin"
    cubin.write_bytes(binary.cubin)
    text = subprocess.run([disassembler(), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^//-+ \.text\.(\w+) -+$", text, flags=re.MULTILINE)
    code = {
        symbol: re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+?)\s*;", body)
        for symbol, body in zip(sections[1::2], sections[2::2], strict=True)
    }
    return {name: code[symbol] for name, symbol in binary.lowered_names.items()}


def anonymous(code):
    return [re.sub(r"`\(.*?\)|\s+", "", line) for line in code]


def work(code):
    """How often it loads, stores, adds, waits and calls: that does not depend on how the compiler arranges it."""
    found = (re.match(r"(?:@!?U?P\d)?(LDG|STG|LDS|STS|RED|ATOMG?|MEMBAR|BAR|FADD|CALL)", line) for line in code)
    return Counter(match[1] for match in found if match)


needs_code = pytest.mark.skipif(disassembler() is None, reason="needs nvidia-cuda-nvdisasm")


@needs_code
@pytest.mark.parametrize("name", some(["int32", "float32", "float16", "complex64"], 1))
def test_a_sum_has_the_machine_code_of_the_sum(name, tmp_path):
    row = TABLE[name]
    ours = linked(pyncclx.Op(lambda a, b: a + b), KERNELS, dtype=row)
    names = sorted(instantiation(kernel, row.cxx, "Sum") for kernel in KERNELS)
    sums = nvrtc.compile_kernels(ALLREDUCE, names, ARCHITECTURE)
    codes = [machine_code(binary, tmp_path).values() for binary in (ours, sums)]
    for kernel, code, reference in zip(names, *codes, strict=True):
        ours, theirs = anonymous(code), anonymous(reference)
        assert work(ours) == work(theirs), kernel
        assert abs(len(ours) - len(theirs)) <= (len(theirs) / 100 if "two_shot<" in kernel else 16), kernel


@needs_code
@pytest.mark.parametrize("name", some(gallery.CASES, 2))
def test_nothing_is_called_and_nothing_spilled(name, tmp_path):
    """No call but the kernels' own, which all kernels have; next to nothing leaves the registers.

    A group of records fills most of them, so that what is needed around its loop is elsewhere meanwhile; so is what is
    needed around the loop that folds tiles.
    """
    op = gallery.CASES[name].op
    binary, most = linked(op, ALL_KERNELS), 256 if operator(op).group_nbytes == PACK_NBYTES else 768
    for kernel, code in machine_code(binary, tmp_path).items():
        calls = [line for line in code if "CALL" in line and not re.search(RARE, line)]
        assert calls == [], kernel
    spilled = re.findall(r"(\d+) bytes spill", binary.log)
    assert spilled
    assert max(map(int, spilled)) <= most


def normalised(x, row, column, scale, weight):
    return x * scale[row] * weight[column]


@needs_code
@pytest.mark.parametrize(
    ("file", "kernel"),
    [
        ("collectives/transformed", "allgather_transformed<float, Bfloat16, RowTransform>"),
        ("collectives/transform_rows", "transform_rows<float, Bfloat16, RowTransform>"),
        ("tokens/combine", "combine<Half, Half, RowTransform>"),
    ],
)
def test_nothing_of_a_row_transform_is_called(file, kernel, tmp_path):
    row = np.dtype("f4")
    code = numba_functions.for_gpu(normalised, numba_functions.RowTypes(row, row, (row, row)), ARCHITECTURE)
    compiled = nvrtc.compile_kernels(f"{file}.cu", [kernel], ARCHITECTURE, "-dlto")
    binary = nvrtc.link(compiled, code, ARCHITECTURE, "-verbose")
    instructions = machine_code(binary, tmp_path)[kernel]
    assert [line for line in instructions if "CALL" in line and not re.search(RARE, line)] == []
    # Half numbers are converted by integers; in combine 272 bytes are spilled.
    assert max(map(int, re.findall(r"(\d+) bytes spill", binary.log))) <= 288


def test_a_linked_binary_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path))
    made, file = operator(pyncclx.Op(lambda a, b: a * b, "f4")), "collectives/fold.cu"
    source, names = kernels._linked_names(made, file, FILES[file].kernels)
    code = numba_functions.for_gpu(made.fn, made.types, ARCHITECTURE)
    assert code == numba_functions.for_gpu(made.fn, made.types, ARCHITECTURE)
    first = nvrtc.compile_linked(source, list(names.values()), ARCHITECTURE, code)
    monkeypatch.setattr(nvrtc, "link", None)
    assert nvrtc.compile_linked(source, list(names.values()), ARCHITECTURE, code).cubin == first.cubin


def test_the_line_that_numba_refuses():
    def spelled(a, b):
        return a.upper() + b  # the line

    with pytest.raises(TypeError, match=r"(?s)spelled\(a, b\) for float32.*upper.*# the line"):
        numba_functions.for_gpu(spelled, np.dtype("f4"), ARCHITECTURE)


def test_the_line_of_a_row_transform_that_numba_refuses():
    def spelled(x, row, column):
        return x.upper()  # the line

    types = numba_functions.RowTypes(np.dtype("f4"), np.dtype("i1"), ())
    with pytest.raises(TypeError, match=r"(?s)Transform.*spelled\(x, row, column\) for float32, to int8.*# the line"):
        numba_functions.for_gpu(spelled, types, ARCHITECTURE)


def test_a_numpy_that_numba_does_not_know(monkeypatch):
    """As numba-cuda 0.30 and NumPy 2.5: the remedy is named before a user's function is blamed."""

    def refresh(context):
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    target = importlib.import_module("numba.cuda.descriptor").cuda_target
    monkeypatch.setattr(type(target.typing_context), "refresh", refresh)
    numba_cuda.target.cache_clear()
    with pytest.raises(NotSupported, match=r"(?s)numba-cuda.*row_stack.*numba13"):
        numba_functions.for_gpu(lambda a, b: a, np.dtype("f4"), ARCHITECTURE)


def test_templates_and_what_they_find():
    vector = operator(gallery.CASES["sum of 3-vectors"].op)
    located = operator(gallery.CASES["maximum and its place"].op)
    assert (vector.template[0], vector.group_nbytes) == ("Record<12, unsigned>", 48)
    assert (located.template[0], located.group_nbytes) == ("Record<8, unsigned long long>", 16)
    assert bound_op.named(vector.template) is vector
    assert bound_op.named(("float", "Sum")) is bound_op.named(()) is None
    with pytest.raises(NotSupported, match="cannot reduce"):
        bound_op.named(("unsigned char", vector.template[1]))
    with pytest.raises(NotSupported, match="12 bytes"):
        check_records("Scan", "scan_one_shot", vector.template)


def test_layouts_hold_whole_groups():
    vector, layout = operator(gallery.CASES["sum of 3-vectors"].op), plan(1 << 18, 3, 2)
    fitted = bound_op.fitting(layout, vector.template)
    assert fitted.chunk_nbytes % 48 == fitted.slot_nbytes % 48 == 0
    assert 0 <= layout.chunk_nbytes - fitted.chunk_nbytes < 48
    assert 0 <= layout.slot_nbytes - fitted.slot_nbytes < 48
    assert bound_op.fitting(layout, ("float", "Sum")) is layout


def test_attributes():
    op = pyncclx.Op(lambda a, b: a * b, "f8", identity=1, commute=True)
    assert (op.name, op.dtype, op.identity, op.commute) == ("<lambda>", TABLE["float64"], 1, True)
    assert repr(op) == "pyncclx.Op(<lambda>, float64)"
    record = pyncclx.Op(gallery.maxloc, gallery.LOCATED, identity=(-np.inf, 0))
    assert record.identity["value"] == -np.inf
