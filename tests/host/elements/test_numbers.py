"""Half, bfloat16 and e4m3 convert as NumPy does: every pattern to float, and floats that are hard to round back."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyncclx.backends import host

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

SOURCE = """
#include "elements/numbers.cuh"
struct Args { const void* from; void* to; u64 count; };
template <class From, class To>
__global__ void convert(const __grid_constant__ Args a) {
    for (u64 i = threadIdx.x; i < a.count; i += blockDim.x)
        static_cast<To*>(a.to)[i] = To(static_cast<const From*>(a.from)[i]);
}
"""
TYPES = {
    "Half": np.dtype("f2"),
    "Bfloat16": np.dtype(ml_dtypes.bfloat16),
    "Float8": np.dtype(ml_dtypes.float8_e4m3fn),
}
MANTISSA = {"Half": 10, "Bfloat16": 7, "Float8": 3}  # bits


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that converts an array in a kernel: (values, C++ type of them, C++ type, dtype) -> array."""
    path: Path = tmp_path_factory.mktemp("numbers") / "convert.cu"
    path.write_text(SOURCE)
    device = host.Device()
    pairs = [pair for name in TYPES for pair in ((name, "float"), ("float", name))]
    kernels = device.load(device.compile(str(path), [f"convert<{a}, {b}>" for a, b in pairs]))

    def run(values: Any, source: str, target: str, dtype: Any) -> Any:
        result = np.full(values.shape, 7, dtype)
        arguments = struct.pack("QQQ", values.ctypes.data, result.ctypes.data, values.size)
        device.launch(kernels[f"convert<{source}, {target}>"], 1, 64, arguments, None)
        return result

    return run


def assert_same(seen: Any, expected: Any, values: Any) -> None:
    """The same bits, where the expected value is a number; not a number where it is none."""
    bits = f"u{expected.itemsize}"
    with np.errstate(invalid="ignore"):  # signalling NaNs are among the patterns
        number, none = ~np.isnan(expected.astype("f8")), np.isnan(seen.astype("f8"))
    wrong = np.where(number, seen.view(bits) != expected.view(bits), ~none)
    first = np.flatnonzero(wrong)[:3]
    assert not wrong.any(), f"{wrong.sum()} differ: {values[first]} became {seen[first]}, expected {expected[first]}"


def patterns(name: str) -> Any:
    """Every value of a short type."""
    itemsize = TYPES[name].itemsize
    return np.arange(1 << 8 * itemsize, dtype=f"u{itemsize}").view(TYPES[name])


@pytest.mark.parametrize("name", TYPES)
def test_every_pattern_to_float(convert: Any, name: str) -> None:
    values = patterns(name)
    assert_same(convert(values, name, "float", "f4"), values.astype("f4"), values)


@pytest.mark.parametrize("name", TYPES)
def test_floats_are_rounded_to_the_nearest(convert: Any, name: str) -> None:
    """Every value of the short type, halfway to the next one, the floats beside both, and any bits."""
    short = patterns(name).astype("f4").view("u4")
    half_step = np.uint32(1 << (22 - MANTISSA[name]))
    near = [short + np.uint32(middle) + step for middle in (0, half_step) for step in (np.uint32(-1 % 2**32), 0, 1)]
    anything = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype="u4")
    smallest = np.float32(ml_dtypes.finfo(TYPES[name]).smallest_subnormal)
    half = int((smallest / 2).view("u4"))
    tiny = np.arange(max(half, 500) - 500, half + 500, dtype="u4")  # about half of the smallest number
    values = np.concatenate([*near, anything, tiny, tiny | np.uint32(0x80000000)]).astype("u4").view("f4")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        expected = values.astype(TYPES[name])
    assert_same(convert(values, "float", name, TYPES[name]), expected, values)
