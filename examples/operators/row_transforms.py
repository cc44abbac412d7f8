"""Row transforms: a collective's own kernel does the work of a kernel before it.

    mpiexec -n 4 python examples/operators/row_transforms.py [--rows 8192] [--columns 4096]

There are four operations, each with a Python function of an element, its row and its column. The result is compared,
bit by bit, with that of the plain operation on rows that NumPy has transformed. On GPUs two ways are timed in a CUDA
graph: the operation with the transform, and a kernel in C++ followed by the operation. With PYNCCLX_DEVICE=host it runs
without a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
import pyncclx.device as d
from common.program import array_module, read_options, to_host
from pyncclx.tools.bench import timing

Array = Any  # NumPy's or CuPy's
EXPERTS, CHOSEN = 32, 4


@pyncclx.Transform
def normalised(x, row, column, inverse_rms, weight):
    return x * inverse_rms[row] * weight[column]


@pyncclx.Transform
def quantised(x, row, column, inverse_scale):
    return max(-127, min(127, round(x * inverse_scale[row])))


@pyncclx.Transform
def biased(x, row, column, bias):
    return x + bias[column]


SOURCE = """
struct Bfloat16 {
    unsigned short bits;
    __device__ operator float() const { return __uint_as_float(unsigned(bits) << 16); }
    __device__ void operator=(float value) {
        const unsigned word = __float_as_uint(value);
        bits = (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
};
struct Normalise {
    static __device__ float of(float x, const float* a, const float* b, long long row, long long column) {
        return x * a[row] * b[column];
    }
};
struct Quantise {
    static __device__ float of(float x, const float* a, const float*, long long row, long long) {
        return max(-127.0f, min(127.0f, rintf(x * a[row])));
    }
};
struct Bias {
    static __device__ float of(float x, const float* a, const float*, long long, long long column) {
        return x + a[column];
    }
};
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) Eight { T values[8]; };

template <class Function, class From, class To>
__global__ void made(const From* x, const float* a, const float* b, To* y, long long rows, long long columns) {
    for (long long row = blockIdx.x; row < rows; row += gridDim.x)
        for (long long column = 8 * threadIdx.x; column < columns; column += 8 * blockDim.x) {
            const auto from = *reinterpret_cast<const Eight<From>*>(x + row * columns + column);
            Eight<To> to;
            for (int e = 0; e < 8; ++e) to.values[e] = Function::of(from.values[e], a, b, row, column + e);
            *reinterpret_cast<Eight<To>*>(y + row * columns + column) = to;
        }
}
"""


class Case(NamedTuple):
    """An operation with a transform, and its counterparts without one."""

    name: str
    operation: str
    transform: pyncclx.Transform
    types: tuple[str, str]  # types of elements: sent, received
    arrays: tuple[str, ...]  # arrays that the function reads
    reference: Callable[..., Array]  # the transform by NumPy
    kernel: str  # name of a kernel in SOURCE


CASES = (
    Case(
        *("RMS-norm, float32 to bfloat16", "Allgather", normalised, ("float32", "bfloat16"), ("inverse_rms", "weight")),
        lambda x, inverse_rms, weight: x * inverse_rms[:, None] * weight,
        "made<Normalise, float, Bfloat16>",
    ),
    Case(
        *("quantise, bfloat16 to int8", "Alltoall", quantised, ("bfloat16", "int8"), ("inverse_scale",)),
        lambda x, inverse_scale: np.round(x * inverse_scale[:, None]).clip(-127, 127),
        "made<Quantise, Bfloat16, signed char>",
    ),
    Case(
        *("RMS-norm, bfloat16", "dispatch", normalised, ("bfloat16", "bfloat16"), ("inverse_rms", "weight")),
        lambda x, inverse_rms, weight: x * inverse_rms[:, None] * weight,
        "made<Normalise, Bfloat16, Bfloat16>",
    ),
    Case(
        *("add a bias, bfloat16", "combine", biased, ("bfloat16", "bfloat16"), ("bias",)),
        lambda x, bias: x + bias,
        "made<Bias, Bfloat16, Bfloat16>",
    ),
)


def main() -> int:
    """Check and time all cases; return 1 if a result is wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(comm, parse)
    xp = array_module(comm, "float32")
    importlib.import_module("ml_dtypes")  # registers bfloat16 with NumPy
    wrong = 0
    for case in CASES:
        example = Example(comm, xp, case, options.rows // comm.size * comm.size, options.columns)
        right = all(comm.allgather(example.is_right()))
        wrong += not right
        times = example.times() if comm.device == "gpu" else ""
        if comm.rank == 0:
            print(f"{case.operation:9} {case.name:29} {'right' if right else 'WRONG'} {times}", flush=True)
    if comm.rank == 0:
        print(f"check: {'FAILED' if wrong else 'PASSED'}")
    return int(wrong > 0)


class Example:
    """One case with its data.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    case : Case
    rows, columns : int
        Shape of the array that a rank sends; `rows` is a multiple of the number of ranks.
    """

    def __init__(self, comm: Any, xp: Any, case: Case, rows: int, columns: int) -> None:
        self.comm, self.xp, self.case, self.handle = comm, xp, case, None
        self.types = [np.dtype(name) for name in case.types]
        random = np.random.default_rng(comm.rank)
        if case.operation in ("dispatch", "combine"):
            tokens, capacity = rows // CHOSEN, 2 * rows + 64
            self.ids = xp.asarray(np.argsort(random.random((tokens, EXPERTS)), axis=1)[:, :CHOSEN].copy())
            self.shuffle = comm.Create_token_shuffle(
                EXPERTS, capacity, columns, "bfloat16", k=CHOSEN, max_tokens=tokens
            )
            rows = tokens if case.operation == "dispatch" else capacity
            self.out = xp.empty((tokens, columns), self.types[1])
            _, self.handle = self.shuffle.dispatch(xp.ones((tokens, columns), self.types[0]), self.ids)
        self.x = random.standard_normal((rows, columns), "f4").astype(self.types[0])
        self.arrays = [made_of(self.x.astype("f4"), name) for name in case.arrays]
        self.send, self.on_device = xp.asarray(self.x), [xp.asarray(each) for each in self.arrays]
        self.transform = case.transform(*self.on_device)
        total = int(to_host(self.handle.rows.total)[0]) if self.handle else rows
        self.arriving = total if case.operation == "dispatch" else None  # rows after these are undefined
        self.needed = total if case.operation == "combine" else rows  # rows after these are not read
        self.received = xp.empty((comm.size if case.operation == "Allgather" else 1, rows, columns), self.types[1])

    def move(self, array: Array, **options: Any) -> Array:
        """Run the operation; return the received rows."""
        if self.case.operation == "dispatch":
            rows, _ = self.shuffle.dispatch(array, handle=self.handle, **options)
            return rows.data
        if self.case.operation == "combine":
            return self.shuffle.combine(array, self.handle, out=self.out, **options)
        getattr(self.comm, self.case.operation)(array, self.received, **options)
        return self.received

    def is_right(self) -> bool:
        """Return whether the transform gives the result for rows transformed by NumPy."""
        results = []
        made = self.case.reference(self.x.astype("f4"), *self.arrays).astype(self.types[1])
        for array, options in ((self.send, {"transform": self.transform}), (self.xp.asarray(made), {})):
            results.append(to_host(self.move(array, **options))[: self.arriving].copy())
        return results[0].tobytes() == results[1].tobytes()

    def times(self) -> str:
        """Return the µs with the transform, and with a kernel before the operation."""
        kernel, queue = d.kernel(SOURCE, self.case.kernel), timing.queue_of(self.comm)
        made, columns = self.xp.empty(self.x.shape, self.types[1]), self.x.shape[1]

        def one_after_the_other() -> None:
            kernel(1024, 256, [self.send, self.on_device[0], self.on_device[-1], made, self.needed, columns])
            self.move(made)

        ways = (lambda: self.move(self.send, transform=self.transform), one_after_the_other, lambda: self.move(made))
        fused, serial, alone = (timing.time(self.comm, queue, way, 10, 2, graph=True).slowest for way in ways)
        return f"{fused:7.1f} µs; kernel and operation {serial:7.1f}, {serial / fused:.2f}x; operation {alone:7.1f}"


def made_of(x: Array, name: str) -> Array:
    """Return an array that a transform reads, for rows x."""
    columns = x.shape[1]
    if name == "inverse_rms":
        return (1 / np.sqrt((x**2).mean(axis=1) + 1e-6)).astype("f4")
    if name == "inverse_scale":
        return (127 / np.maximum(np.abs(x).max(axis=1), 1e-6)).astype("f4")
    return np.linspace(*((0.5, 1.5) if name == "weight" else (-1, 1)), columns, dtype="f4")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows, columns = (24, 48) if os.environ.get("PYNCCLX_DEVICE") == "host" else (8192, 4096)
    parser.add_argument("--rows", type=int, default=rows, metavar="N", help="of what each rank sends")
    parser.add_argument("--columns", type=int, default=columns, metavar="N", help="a multiple of 16")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
