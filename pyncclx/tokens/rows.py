"""Results of a token shuffle's dispatch: rows, and the handle of their routing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .settings import Settings


class Part(NamedTuple):
    """An array in the memory that a dispatch writes."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def end(self) -> int:
        return self.offset + self.dtype.itemsize * math.prod(self.shape)

    def of(self, memory: Any) -> Any:
        """Return the array in one dispatch's memory."""
        return memory[self.offset : self.end].view(self.dtype).reshape(self.shape)


class Outputs(NamedTuple):
    """Addresses of the arrays that a dispatch writes, in the order of `DispatchArgs`."""

    routes: int  # routing: for each choice of this rank, rank and row there
    ways: int  # token map: for each choice of all ranks, its row on this rank
    token_counts: int  # number of each rank's tokens
    counts: int  # rows of each group: this and the following arrays are described in `Rows`
    offsets: int
    total: int
    dropped: int
    row_experts: int
    row_weights: int


Shapes = dict[str, tuple[tuple[int, ...], Any]]  # shape and dtype of each array, by its name


def output_shapes(settings: Settings) -> Shapes:
    """Return shape and dtype of the arrays that a dispatch writes, as in `Outputs`.

    In memory, the routes follow these arrays.
    """
    size, capacity = settings.comm.size, settings.capacity
    groups = size if settings.layout == "source" else len(settings.local_experts)
    return {
        "ways": ((size, settings.max_tokens, settings.k), np.uint32),
        "token_counts": ((size,), np.int64),
        "counts": ((groups,), np.int64),
        "offsets": ((groups + 1,), np.int64),
        "total": ((1,), np.int64),
        "dropped": ((size,), np.int64),
        "row_experts": ((capacity,), np.int32),
        "row_weights": ((capacity,), np.float32),
    }


def parts_of(shapes: Shapes) -> dict[str, Part]:
    """Lay out arrays one after the other."""
    parts, end = {}, 0
    for name, (shape, dtype) in shapes.items():
        parts[name] = Part(aligned(end), shape, np.dtype(dtype))
        end = parts[name].end
    return parts


def aligned(offset: int) -> int:
    """Round an offset up to a multiple of 8 bytes."""
    return offset + 7 & -8


class Rows:
    """The rows that a dispatch sent to this rank, as device arrays.

    Most arrays are as long as the capacity. Arrays other than `data` and `scales` are created at their first use,
    because creating an array costs the host as much time as a launch.

    Attributes
    ----------
    data : array, shape (capacity, hidden), of the shuffle's rows_dtype
        The first `total` rows are tokens; the others are undefined. 8-bit floats are uint8, and bfloat16 is uint16 if
        NumPy has no such type. The next dispatch overwrites this array.
    scales : array, shape (capacity, ceil(hidden / 128)), float32, or None
        With ``rows_dtype="float8_e4m3"``: a value is its 8-bit float times its scale.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> shuffle = comm.Create_token_shuffle(2, 8, 16, "f4", k=1, max_tokens=4)
    >>> tokens = np.ones((3, 16), "f4")
    >>> rows, handle = shuffle.dispatch(tokens, np.array([[1], [0], [1]]))
    >>> rows.counts.tolist(), rows.offsets.tolist(), rows.experts[:3].tolist()
    ([1, 2], [0, 1, 3], [0, 1, 1])
    >>> shuffle.Free()
    """

    def __init__(self, data: Any, scales: Any, memory: Any, parts: dict[str, Part]) -> None:
        self.data, self.scales = data, scales
        self._memory, self._parts = memory, parts

    def _array(self, name: str) -> Any:
        return self._parts[name].of(self._memory)

    @cached_property
    def counts(self) -> Any:
        """Number of rows of each local expert (or rank, ``layout="source"``); int64."""
        return self._array("counts")

    @cached_property
    def offsets(self) -> Any:
        """First row of each group of `counts`, then `total`; int64."""
        return self._array("offsets")

    @cached_property
    def total(self) -> Any:
        """The number of rows; shape (1,), int64."""
        return self._array("total")

    @cached_property
    def dropped(self) -> Any:
        """Number of rows dropped on this rank, by source rank; shape (size,), int64."""
        return self._array("dropped")

    @cached_property
    def experts(self) -> Any:
        """The expert of each row, -1 past `total`; shape (capacity,), int32.

        It is an index into ``shuffle.local_experts``.
        """
        return self._array("row_experts")

    @cached_property
    def weights(self) -> Any:
        """The weight of each row, 0 past `total`; shape (capacity,), float32."""
        return self._array("row_weights")


@dataclass(frozen=True, eq=False)
class Handle:
    """The routing of a dispatch, in device memory.

    Pass it to `combine` and `collect`, and to dispatches with the same routing. Keep it as long as a graph that uses
    it.

    Attributes
    ----------
    rows : Rows
        Rows of the dispatch.
    tokens : int
        Number of tokens that this rank dispatched.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> shuffle = comm.Create_token_shuffle(2, 8, 16, "f4", k=1, max_tokens=4)
    >>> tokens = np.ones((3, 16), "f4")
    >>> rows, handle = shuffle.dispatch(tokens, np.array([[1], [0], [1]]))
    >>> handle.tokens
    3
    >>> again, handle = shuffle.dispatch(2 * tokens, handle=handle)
    >>> shuffle.Free()
    """

    rows: Rows
    tokens: int
    outputs: Outputs
    # The shuffle's memory that contains `rows`; it identifies the handle's shuffle.
    window: object
