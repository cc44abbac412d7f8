"""What the examples of overlap have in common: streams side by side, signals between ranks, products, and timing.

On GPUs matrices are PyTorch's tensors, since its products can be captured in a CUDA graph; without a GPU
(PYNCCLX_DEVICE=host) they are NumPy's arrays, and one thing follows the other. Both are bfloat16.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

import pyncclx.device as d

Matrix = Any  # of NumPy or PyTorch
Work = Callable[[], None]

SOURCE = """
#include "pyncclx.cuh"

struct alignas(16) Eight { unsigned short bits[8]; };  // numbers of type bfloat16
union Number { unsigned bits; float value; };

// A signal counts what has arrived from one rank. So nothing changes from call to call, and a graph can hold these two.
extern "C" __global__ void tell(pyncclx_team team, int peer, int signal) {
    pyncclx_signal_add(team, peer, signal, 1);
}

extern "C" __global__ void hear(pyncclx_team team, unsigned long long* seen, int signal) {
    pyncclx_wait_until(team, signal, ++seen[signal]);
}

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


class Gpu:
    """Matrices and streams of a GPU.

    A stream that is entered with ``with gpu.on(stream):`` is the current one of CuPy and of PyTorch.
    """

    def __init__(self) -> None:
        self._cupy, self._torch = importlib.import_module("cupy"), importlib.import_module("torch")
        self._torch.cuda.set_device(self._cupy.cuda.Device().id)
        self._torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # all sums in single precision
        self.main, self.copies, self.signals, self.sums = (self._cupy.cuda.Stream(non_blocking=True) for _ in range(4))

    def matrix(self, array: Any) -> Matrix:
        """A matrix over the memory of a CuPy array of 16-bit integers."""
        return self._torch.from_dlpack(array).view(self._torch.bfloat16)

    def put(self, values: Any) -> Matrix:
        """A matrix of numbers between -1 and 1: so many 128ths."""
        matrix = self._torch.from_numpy(values).to("cuda").to(self._torch.bfloat16) / 128
        self._cupy.cuda.Device().synchronize()
        return matrix

    def get(self, matrix: Matrix) -> Any:
        """The values of a matrix, on the host."""
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
        """What comes on a stream from now on waits for what there is on another."""
        then.wait_event(first.record(self._cupy.cuda.Event(disable_timing=True)))

    def seconds(self, comm: Any, work: Work, times: int) -> float:
        """The time of one call among many, on the slowest rank: of a CUDA graph of `times` calls, replayed."""
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
            begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            begin.record(self.main)
            for _ in range(5):
                graph.launch(self.main)
            end.record(self.main)
            end.synchronize()
        mine = self._cupy.cuda.get_elapsed_time(begin, end) / 1e3 / 5 / times
        return float(max(comm.allgather(mine)))


class Cpu:
    """The same without a GPU: nothing is beside anything."""

    main = copies = signals = sums = None

    def __init__(self) -> None:
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
    """What `comm` runs on; on GPUs each rank takes its own."""
    comm.select_device()
    return Cpu() if comm.device == "host" else Gpu()


class Signals:
    """A rank's streams tell the others' that something has arrived; the hosts do not wait.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    """

    def __init__(self, comm: Any) -> None:
        self.comm, self.team = comm, comm.device_team(signals=comm.size)
        self.seen = array_module(comm).zeros(comm.size, "u8")  # from each rank
        self.kernels = d.kernels(SOURCE, "tell", "hear", "add")

    def tell(self, peer: int) -> None:
        """Tell a rank that what this stream has done is there."""
        self.kernels["tell"](1, 1, [self.team, np.int32(peer), np.int32(self.comm.rank)])

    def wait(self, peer: int) -> None:
        """Let the stream wait until a rank has told once more."""
        self.kernels["hear"](1, 1, [self.team, self.seen, np.int32(peer)])

    def add(self, parts: Matrix, stride: int, out: Matrix) -> None:
        """Add, for each rank, what begins `stride` rows after the one before: in rank order and single precision."""
        blocks, threads = (2, 32) if self.comm.device == "host" else (1024, 256)
        row = out.nbytes // len(out) // 16
        arguments = [parts, stride * row, np.int32(self.comm.size), out, len(out) * row]
        self.kernels["add"](blocks, threads, arguments)


def array_module(comm: Any) -> ModuleType:
    """CuPy, or NumPy on the host device."""
    return np if comm.device == "host" else importlib.import_module("cupy")


def rounded(values: Any) -> Any:
    """Single precision, rounded to bfloat16 as a product is."""
    bits = np.ascontiguousarray(values, "f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("u4").view("f4")
