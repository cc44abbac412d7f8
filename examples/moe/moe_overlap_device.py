"""Devices of moe_overlap.py: grouped products, and division of multiprocessors."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from common import overlap

Matrix = Any  # NumPy's or PyTorch's
Stream = Any


class Gpu(overlap.Gpu):
    """A GPU whose multiprocessors can be divided between two streams."""

    def __init__(self) -> None:
        super().__init__()
        self._driver = importlib.import_module("cuda.bindings.driver")
        self._divided: dict[int, tuple[Stream, Stream]] = {}

    def upload(self, values: Any) -> Any:
        """Return values on the GPU, as integers or in single precision."""
        array = self._torch.from_numpy(values).to("cuda")
        self._cupy.cuda.Device().synchronize()
        return array

    def empty(self, *shape: int) -> Matrix:
        """Return a matrix with undefined values."""
        return self._torch.empty(shape, dtype=self._torch.bfloat16, device="cuda")

    def stack(self, matrices: list[Matrix]) -> Any:
        """Return matrices one after the other."""
        return self._torch.stack(matrices)

    def experts(self, rows: Any, offsets: Any, up: Any, down: Any) -> Matrix:
        """Enqueue max(x @ up[e], 0) @ down[e] for the rows x of each expert e.

        The rows of expert e begin at offsets[e].
        """
        grouped = self._torch.nn.functional.grouped_mm
        ends = self._torch.from_dlpack(offsets)[1:].int()
        return grouped(grouped(self.matrix(rows), up, offs=ends).relu_(), down, offs=ends)

    @contextlib.contextmanager
    def leaving(self, multiprocessors: int | None) -> Iterator[None]:
        """Let products use this many blocks fewer.

        Their blocks begin at the same time and divide the work evenly.
        """
        self._torch._C._set_sm_carveout_experimental(multiprocessors)
        yield
        self._torch._C._set_sm_carveout_experimental(None)

    def divide(self, multiprocessors: int) -> tuple[Stream, Stream]:
        """Return a stream on some multiprocessors, and one on all others.

        Kernels on one stream do not use the other's multiprocessors.
        """
        if multiprocessors not in self._divided:
            ordinal, driver = self._cupy.cuda.Device().id, self._driver
            whole = _checked(driver.cuDeviceGetDevResource(ordinal, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
            some, _, others = _checked(driver.cuDevSmResourceSplitByCount(1, whole, 0, multiprocessors))
            self._divided[multiprocessors] = self._stream_of(others), self._stream_of(some[0])
        return self._divided[multiprocessors]

    def _stream_of(self, resource: Any) -> Stream:
        """Return a stream of a new green context; both last until the process ends."""
        driver, ordinal = self._driver, self._cupy.cuda.Device().id
        description = _checked(driver.cuDevResourceGenerateDesc([resource], 1))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = _checked(driver.cuGreenCtxCreate(description, ordinal, flags))
        stream = _checked(driver.cuGreenCtxStreamCreate(context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
        return self._cupy.cuda.ExternalStream(int(stream), ordinal)

    def mark(self, stream: Stream) -> Any:
        """Return a mark of the work so far on a stream, for `wait`."""
        return stream.record(self._cupy.cuda.Event(disable_timing=True))

    def wait(self, stream: Stream, mark: Any) -> None:
        """Make later work on a stream wait for a mark."""
        stream.wait_event(mark)


class Cpu(overlap.Cpu):
    """The methods of `Gpu` without a GPU: nothing runs at the same time."""

    def upload(self, values: Any) -> Any:
        return values

    def empty(self, *shape: int) -> Matrix:
        return np.empty(shape, self._dtype)

    def stack(self, matrices: list[Matrix]) -> Any:
        return np.stack(matrices)

    def experts(self, rows: Any, offsets: Any, up: Any, down: Any) -> Matrix:
        results = np.zeros((len(rows), down.shape[2]), self._dtype)
        for expert, (first, end) in enumerate(itertools.pairwise(offsets)):
            x = self.matrix(rows[first:end]).astype("f4")
            inner = np.maximum(x @ up[expert].astype("f4"), 0).astype(self._dtype)
            self.multiply(inner, down[expert], results[first:end])
        return results

    @contextlib.contextmanager
    def leaving(self, multiprocessors: int | None) -> Iterator[None]:
        yield

    def divide(self, multiprocessors: int) -> tuple[None, None]:
        return None, None

    def mark(self, stream: Stream) -> None:
        pass

    def wait(self, stream: Stream, mark: Any) -> None:
        pass


def device_of(comm: Any) -> Gpu | Cpu:
    """Return the device of `comm`: this rank's selected GPU, or the host device."""
    return Cpu() if comm.device == "host" else Gpu()


def _checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a driver call; raise an exception for an error."""
    status, *values = result
    if status:
        raise RuntimeError(f"CUDA driver: {status.name}")
    return values[0] if len(values) == 1 else values
