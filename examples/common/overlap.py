"""Streams, matrix products and timing for programs that overlap communication.

On GPUs matrices are PyTorch's tensors, because its products can be captured in a CUDA graph. Without a GPU
(PYNCCLX_DEVICE=host) they are NumPy's arrays, and nothing runs at the same time. Both are bfloat16.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import pyncclx.device as d

Matrix = Any  # NumPy's or PyTorch's
Work = Callable[[], None]
REPLAYS = 7  # replays of a graph

SOURCE = """
struct alignas(16) Eight { unsigned short bits[8]; };  // numbers of type bfloat16
union Number { unsigned bits; float value; };

// sum = parts[0] + parts[stride] + ..., in this order and single precision; rounded once. Lengths are in Eights.
extern "C" __global__ void add(const Eight* parts, long long stride, int count, Eight* sum, long long length) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < length; i += gridDim.x * blockDim.x) {
        Number total[8];
        for (int k = 0; k < 8; ++k) total[k].value = -0.0f;
        for (int part = 0; part < count; ++part) {
            const Eight eight = parts[part * stride + i];
            for (int k = 0; k < 8; ++k) {
                Number number;
                number.bits = unsigned(eight.bits[k]) << 16;
                total[k].value += number.value;
            }
        }
        Eight rounded;
        for (int k = 0; k < 8; ++k) rounded.bits[k] = (total[k].bits + 0x7fff + (total[k].bits >> 16 & 1)) >> 16;
        sum[i] = rounded;
    }
}
"""


class Device:
    """Methods that GPUs and the host device have in common."""

    grid = (1024, 256)

    def __init__(self) -> None:
        self._add = d.kernel(SOURCE, "add")

    def add(self, count: int, parts: Matrix, stride: int, out: Matrix) -> None:
        """Enqueue a sum of matrices, each `stride` rows after the previous one."""
        row = out.nbytes // len(out) // 16
        self._add(*self.grid, [parts, stride * row, np.int32(count), out, len(out) * row])


class Gpu(Device):
    """Matrices and streams of a GPU.

    A stream that is entered with ``with gpu.on(stream):`` is the current one of CuPy and of PyTorch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cupy, self._torch = importlib.import_module("cupy"), importlib.import_module("torch")
        self._torch.cuda.set_device(self._cupy.cuda.Device().id)
        self._torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums are exact
        streams = (self._cupy.cuda.Stream(non_blocking=True) for _ in range(4))
        self.main, self.copies, self.signals, self.sums = streams

    def matrix(self, array: Any) -> Matrix:
        """A matrix over the memory of a CuPy array of 16-bit integers."""
        return self._torch.from_dlpack(array).view(self._torch.bfloat16)

    def put(self, values: Any) -> Matrix:
        """A matrix of numbers between -1 and 1: so many 128ths."""
        matrix = self._torch.from_numpy(values).to("cuda").to(self._torch.bfloat16) / 128
        self._cupy.cuda.Device().synchronize()
        return matrix

    def get(self, matrix: Matrix) -> Any:
        """Return the values of a matrix on the host."""
        self._cupy.cuda.Device().synchronize()
        return matrix.float().cpu().numpy()

    def multiply(self, left: Matrix, right: Matrix, out: Matrix) -> None:
        """Enqueue a product."""
        self._torch.mm(left, right, out=out)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Make a stream the current one."""
        with stream, self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.ptr)):
            yield

    def order(self, first: Any, then: Any) -> None:
        """Make later work on stream `then` wait for the work so far on stream `first`."""
        then.wait_event(first.record(self._cupy.cuda.Event(disable_timing=True)))

    def seconds(self, comm: Any, work: Work, times: int) -> float:
        """Return the median time of one of `times` calls in a graph, on the slowest rank."""
        with self.on(self.main):
            work()
            self.main.synchronize()
            self.main.begin_capture()
            for _ in range(times):
                work()
            graph = self.main.end_capture()
            graph.launch(self.main)
            self.main.synchronize()
            comm.Barrier()
            marks = [self.main.record(self._cupy.cuda.Event())]
            for _ in range(REPLAYS):
                graph.launch(self.main)
                marks.append(self.main.record(self._cupy.cuda.Event()))
            self.main.synchronize()
        between = self._cupy.cuda.get_elapsed_time
        mine = statistics.median(between(*pair) for pair in itertools.pairwise(marks)) / 1e3 / times
        return float(max(comm.allgather(mine)))


class Cpu(Device):
    """The methods of `Gpu` without a GPU: nothing runs at the same time."""

    grid = (2, 32)
    main = copies = signals = sums = None

    def __init__(self) -> None:
        super().__init__()
        self._dtype = importlib.import_module("ml_dtypes").bfloat16

    def matrix(self, array: Any) -> Matrix:
        return array.view(self._dtype)

    def put(self, values: Any) -> Matrix:
        return (values / np.float32(128)).astype(self._dtype)

    def get(self, matrix: Matrix) -> Any:
        return matrix.astype("f4")

    def multiply(self, left: Matrix, right: Matrix, out: Matrix) -> None:
        out[...] = left.astype("f4") @ right.astype("f4")

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        yield

    def order(self, first: Any, then: Any) -> None:
        pass

    def seconds(self, comm: Any, work: Work, times: int) -> float:
        begin = time.perf_counter()
        work()
        return float(max(comm.allgather(time.perf_counter() - begin)))


def device_of(comm: Any) -> Gpu | Cpu:
    """Return the device of `comm`: this rank's selected GPU, or the host device."""
    return Cpu() if comm.device == "host" else Gpu()


def rounded(values: Any) -> Any:
    """Return values in single precision, rounded to bfloat16 like a product."""
    bits = np.ascontiguousarray(values, "f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("u4").view("f4")
