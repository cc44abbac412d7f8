"""The memory of a window on all ranks, as mapped in this process."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.vectors import integer
from ..backends import Device, Function
from ..derived.batches import Part
from ..derived.buffers import TypedBuffer, buffer_at
from ..derived.typemap import typemap_of
from ..errors import MPIError, NotSupported, out_of_range
from ..system.process import BoundedCache
from ..team.plans import Producer
from ..team.streams import stream_for, wait_for_program
from ..team.team import Team


@dataclass(slots=True)
class TargetSpec:
    """Parsed target argument of an operation, with defaults for omitted parts."""

    disp: int = 0
    count: int | None = None
    datatype: Any = None

    @property
    def first(self) -> int:
        """Displacement of the first byte, in a dynamic window."""
        datatype = self.datatype
        return self.disp + (datatype.Get_true_extent()[0] if isinstance(datatype, MPI.Datatype) and datatype else 0)

    def part(self, origin: Buffer) -> Part | None:
        """Return the elements, if their datatype is derived; defaults come from `origin`."""
        datatype, count = self.datatype, origin.count if self.count is None else self.count
        if isinstance(datatype, MPI.Datatype) and datatypes.predefined(datatype) is None:
            return Part(typemap_of(datatype), count, 0, 0)
        if datatype is not None or not isinstance(origin, TypedBuffer):
            return None
        own = origin.typed.parts[0]
        return Part(own.typemap, own.count if self.count is None else count, 0, 0)


class Reach:
    """Memory of a window on all ranks, as mapped in this process.

    Subclasses compute addresses.

    Attributes
    ----------
    team : Team
    copies : BoundedCache or None
        Cached copies, by the keys of their arguments; None for dynamic windows, whose memory may change.
    """

    team: Team
    copies: BoundedCache[Hashable, Any] | None = None
    _used: dict[int, Any]  # streams of operations since the last `synchronize`
    _changing: tuple[Any, ...] = ()  # stream of the last atomic operation since then

    def stream_for(self, buffers: Sequence[Buffer | Producer], of_current: bool | None = None) -> Any:
        """Return the stream for an operation, ordered after the producers of its buffers."""
        team = self.team
        stream = stream_for(team.device, buffers, team.caller, of_current)
        self._used[id(stream)] = stream
        team.order.note(stream)
        return stream

    def stream_for_change(self, *buffers: Buffer) -> Any:
        """Return the stream for an atomic operation, ordered after the previous one.

        MPI orders the atomic operations of one rank.
        """
        stream = self.stream_for(buffers)
        if self._changing and self._changing[0] is not stream:
            self.device.order(self._changing[0], stream)
        self._changing = (stream,)
        return stream

    def check_mapped(self) -> None:
        """Raise MPI.Exception (ERR_WIN) if the window's memory has been freed."""
        if not self.team.windows.by_number:
            raise MPIError(
                MPI.ERR_WIN,
                "the window's communicator has been freed, and its memory from Alloc or Win.Allocate with it; free the "
                "window first, or make it of a communicator that lives longer",
            )

    def synchronize(self) -> None:
        """Wait on the host for this window's operations and the program's own stores."""
        used, self._used, self._changing = list(self._used.values()), {}, ()
        wait_for_program(self.device, self.team.caller, used)

    @property
    def device(self) -> Device:
        """The device that the memory is on."""
        return self.team.device

    @property
    def in_use(self) -> bool:
        """Whether any memory of the window is on a device."""
        return True

    def holds(self, rank: int, target: object) -> bool:
        """Return whether a target argument names memory that is mapped here."""
        raise NotImplementedError

    def place(self, operation: str, rank: int, disp: int, bounds: tuple[int, int]) -> int:
        """Return the address, in this process, of the first byte that is accessed.

        `bounds` are the offsets of the first byte, and of the end of the last byte, from the displacement.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release resources."""
        raise NotImplementedError

    def check_rank(self, operation: str, rank: int) -> int:
        """Return a rank as an integer; raise MPI.Exception (ERR_RANK) if it is invalid."""
        rank = integer(rank)
        if not 0 <= rank < self.team.size:
            text = f"{operation}: target_rank is {rank}; ranks are 0 to {self.team.size - 1}"
            raise out_of_range(MPI.ERR_RANK, rank, text)
        return rank

    def enqueue(self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any) -> None:
        """Launch a kernel on a stream of `stream_for`."""
        self.device.launch(function, grid, threads, parameters, stream)

    def check_allocates(self, operation: str, stream: Any) -> None:
        """Raise NotSupported if a packed copy cannot be allocated on a stream."""
        if self.device.is_capturing(stream):
            raise NotSupported(
                f"{operation}: a derived datatype needs a packed copy, which a captured graph cannot have; pass "
                "a contiguous array"
            )

    def find(self, operation: str, rank: int, target: TargetSpec, origin: Buffer) -> Buffer:
        """Return the elements that a target argument names; defaults come from `origin`.

        Raises
        ------
        MPI.Exception
            If there is no such rank (ERR_RANK), count is negative (ERR_COUNT), the elements are not as long as origin's
            (ERR_TRUNCATE), or not all of them are in the rank's memory (ERR_DISP, ERR_RMA_RANGE).
        """
        part = target.part(origin)
        if part is None:
            datatype = origin.datatype if target.datatype is None else datatypes.of(target.datatype)
            count = origin.count if target.count is None else target.count
            nbytes = count * datatype.itemsize
            bounds = 0, nbytes
        else:
            count, nbytes, bounds = part.count, part.nbytes, part.bounds
        rank = self.check_rank(operation, rank)
        if count < 0:
            raise MPIError(MPI.ERR_COUNT, f"{operation}: target has count {count}; it cannot be negative")
        if nbytes != origin.nbytes:
            text = f"origin has {origin.nbytes} bytes, target {nbytes}; make them equal"
            raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
        first = self.place(operation, rank, target.disp, bounds)
        if part is None:
            return Buffer(first, count, datatype, (), False, None, None)
        # If the datatype has absolute addresses, the displacement may be far from the elements.
        return buffer_at(first, part.at(-bounds[0]))


def parse(operation: str, target: Any) -> TargetSpec:
    """Parse a target argument: None, disp, or a list of disp, count, datatype.

    A list may omit the last items.

    Raises
    ------
    TypeError, ValueError
        If disp or count in a list is no integer, or if `target` has another form, as in mpi4py.
    """
    expecting = f"{operation}: target is {target!r}; expecting None, disp, or (disp, count, datatype)"
    if target is None:
        return TargetSpec()
    if not isinstance(target, (list, tuple)):
        try:
            return TargetSpec(operator.index(target))
        except TypeError:
            raise ValueError(expecting) from None
    if len(target) > 3:
        raise ValueError(f"{expecting}, 3 items at most")
    try:
        numbers = [operator.index(each) for each in target[:2]]
    except TypeError:
        raise TypeError(expecting) from None
    return TargetSpec(*numbers, *target[2:])
