"""The device side of a communicator: its lease of the heap, windows, and launches.

All ranks together make a Team at the communicator's first operation on device arrays.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..arrays.buffers import Buffer
from ..backends import Device, Function
from ..errors import NotSupported
from ..failures import ulfm
from ..failures.detector import DETECTOR
from ..failures.error_record import ErrorRecord
from ..memory import layout
from ..memory.called import RecordedCalls
from ..memory.heap import HEAP, Heap
from ..memory.mapped import Window, allocate_window, register_window
from ..memory.parameters import NO_LOCATIONS, TeamStruct
from ..memory.retired import RETIRED, Lease
from ..operations import NUMBERS
from ..system.process import BoundedCache
from . import members
from .ending import Ending, abandon_late
from .kept import Scratch
from .launch_order import LaunchOrder
from .plans import CachedLaunch, MovableLaunch, Plan
from .streams import ANY_CALLER, Caller
from .windows import TeamWindows

T = TypeVar("T")
_LONGEST_TIMEOUT_S = 4e9  # more than a century; kernels compare nanoseconds as 64-bit integers


class Team(Ending):
    """The device side of a communicator on one rank. Creation and end are collective."""

    lease: Lease
    is_beside = False  # true for a track, beside the communicator's own Team

    def __init__(self, comm: MPI.Intracomm, device: Device, heap: Heap) -> None:
        super().__init__()
        self.device, self.id = device, b""
        self.caller: Caller = ANY_CALLER  # chooses streams
        self.rank, self.size, self.heap = comm.rank, comm.size, heap
        self._meet(comm)
        self.errors.claims.append(self.bases[self.rank] + layout.LEASE_OVERFLOW_OFFSET)
        calls = RecordedCalls(device, self.rank, self.bases)
        self.errors.describe_calls, self.errors.find_call = calls.describe, calls.find
        self.errors.late = lambda: self._late(calls)
        self.windows = TeamWindows(device)
        self.scratch = Scratch(device, lambda: self.caller)
        self.order = LaunchOrder(device)
        self.errors.is_busy, self.errors.may_launch = self.order.is_busy, self.may_launch
        self.functions: dict[tuple[str, ...], Function] = {}  # kernels that every rank of the team has loaded
        self.plans: BoundedCache[tuple[Any, ...], Plan] = BoundedCache()  # keys: all that they depend on
        self.cached_launches: BoundedCache[Hashable, CachedLaunch] = BoundedCache()  # keys of the arguments
        self.movable_launches: BoundedCache[Hashable, MovableLaunch] = BoundedCache()  # keys without addresses
        self._structs: dict[tuple[str, bool], bytes] = {}
        self.generation = 0  # changes when packed parameters become invalid
        self._packed_table = 0  # address of the windows' table in `_structs`

    def _meet(self, comm: MPI.Intracomm) -> None:
        """Exchange the ranks' properties, and lease memory for a layout that fits all."""
        abandon_late()
        offered = mpi_bootstrap.exchange(comm, lambda: self._offer(comm), undo=lambda: self.heap.release(self.lease))
        try:
            self.members = members.meet(comm, self.heap, offered)
            self.nvlinked = members.nvlinked(self.members)  # otherwise accesses to a peer's memory are not atomic
            self.is_time_sliced = bool(members.time_sliced_on(self.members))
            self.threads = min(member.threads for member in self.members)
            self.layout = self._plan()
            self.lease = self.heap.trim(self.lease, self.layout.nbytes)
            self.id = self.members[0].team_id  # the same on all ranks
            self.heap.begin(self.id)
            self.bases = [self.heap.base(member.uid) + member.lease_offset for member in self.members]
            self.errors = mpi_bootstrap.agree(comm, lambda: self._begin(comm), undo=self._close_record)
        except BaseException:
            self.heap.release(self.lease, self.id)
            raise

    def _offer(self, comm: MPI.Intracomm) -> members.Member:
        """Reserve a lease, and return the properties that other ranks need."""
        self.lease = self.heap.reserve(layout.least_nbytes(comm.size), is_beside=self.is_beside)
        try:
            return members.own(comm, self.device, self.heap, self.lease)
        except BaseException:
            self.heap.release(self.lease)
            raise

    def _begin(self, comm: MPI.Intracomm) -> ErrorRecord:
        """Prepare the lease for kernels, and return the error record.

        No rank launches a kernel before all ranks have done this.
        """
        if comm.rank == 0:
            members.warn(self.members)
        self.heap.clear(self.lease)
        return self._record(comm)

    def _record(self, comm: MPI.Intracomm) -> ErrorRecord:
        """Make the error record, and let the failure detector watch the ranks."""
        errors = ErrorRecord(self.device, comm.rank)
        try:
            self.heap.join(self.uids)
            self._belong(errors, comm, ulfm.world_ranks(comm))
        except BaseException:
            self._close_record(errors)
            raise
        return errors

    def _belong(self, errors: ErrorRecord, comm: MPI.Intracomm, in_world: Sequence[int]) -> None:
        errors.belong(MPI.Comm(comm), self.id, self.uids, in_world)
        if comm.size > 1:
            DETECTOR.get().watch(errors)

    def belong_to(self, comm: MPI.Intracomm, in_world: Sequence[int]) -> None:
        """Become the Team of another communicator of the same ranks.

        The previous communicator must have made its last call.
        """
        self.forget_launches()  # they record calls of the previous one
        self._belong(self.errors, comm, in_world)

    @property
    def uids(self) -> list[bytes]:
        """The uids of the ranks' heaps."""
        return [member.uid for member in self.members]

    def is_idle(self) -> bool:
        """Return whether nothing runs or has failed, and the lease is its only memory."""
        holds = self.dependents or self.device_teams or len(self.windows)
        return not (holds or self.errors.has_failed) and self.order.is_over()

    def _plan(self) -> layout.Layout:
        nbytes = min(member.offer_nbytes for member in self.members)
        sharing = members.sharing(self.members)
        channels = max(1, min(member.max_channels for member in self.members) // sharing)
        try:
            planned = layout.plan(nbytes, self.size, channels, members.has_lines(self.members))
            return replace(planned, limits=self.members[0].limits, sharing=sharing)
        except ValueError as error:  # on all ranks
            raise NotSupported(f"{error}; set PYNCCLX_HEAP higher than {self.heap.nbytes} bytes") from error

    def require_links(self, operation: str) -> None:
        """Raise NotSupported if operations on a peer's memory are not atomic."""
        if not self.nvlinked:
            raise NotSupported(
                f"{operation}: it changes words of a peer's memory atomically: that takes NVLink between all GPUs, and "
                "that every rank sees those of the others; use Put and Get, under MPI's locks"
            )

    @property
    def timeout_ns(self) -> int:
        """How long a kernel waits for a peer, in ns: the shortest timeout of all ranks."""
        return int(min(_LONGEST_TIMEOUT_S, *(member.timeout_s for member in self.members)) * 1e9)

    def struct_for(self, operation: str, early: bool = False) -> bytes:
        """Return the bytes of the `Team` struct for kernels of an operation."""
        key = operation, early
        packed = self._structs.get(key)
        if packed is None:
            packed = self._structs[key] = TeamStruct.of(
                self.layout,
                rank=self.rank,
                operation=NUMBERS[operation],
                timeout_ns=self.timeout_ns,
                watch=self.errors.address,
                windows=self.windows.table,
                base=self.bases,
                early=early,
            ).pack()
        return packed

    def forget_structs(self) -> None:
        """Drop cached structs and launches, after windows or the layout have changed."""
        self._structs.clear()
        self.forget_launches()
        self.generation += 1

    @mpi_bootstrap.interrupts_deferred()
    def add_window(self, comm: MPI.Intracomm, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Allocate an array in memory that all ranks map. Collective."""
        nbytes = math.prod(shape) * dtype.itemsize
        window = allocate_window(comm, self.device, self.windows.next_number, nbytes)
        return self._add(comm, window, None, lambda: self.device.array(window.owner, shape, dtype))

    @mpi_bootstrap.interrupts_deferred()
    def register(self, comm: MPI.Intracomm, buffer: Buffer) -> Window:
        """Map the memory of each rank's array into all ranks. Collective."""
        number = self.windows.next_number
        window = register_window(comm, self.device, number, buffer.address, buffer.nbytes)
        return self._add(comm, window, buffer.owner, lambda: window)

    @mpi_bootstrap.interrupts_deferred()
    def deregister(self, comm: MPI.Intracomm, window: Window) -> None:
        """Unmap registered memory when no rank uses it any more. Collective."""
        mpi_bootstrap.agree(comm, self.finish)
        mpi_bootstrap.agree(comm, lambda: self._remove(window))
        mpi_bootstrap.agree(comm, lambda: RETIRED.get().free(after=self.errors))

    def _add(self, comm: MPI.Intracomm, window: Window, array: object, make: Callable[[], T]) -> T:
        """Add a window on all ranks or on none, and return the result of `make`."""

        def add() -> T:
            self.windows.add(window, array)
            self._window_changed(window.number)
            return make()

        try:
            made = mpi_bootstrap.agree(comm, add)
        except BaseException:
            self.windows.remove(window)  # the table keeps its row until the number is used again
            raise
        if not self.layout.windows:  # on all ranks, which now choose other kernels
            self.layout = replace(self.layout, windows=True)
            self.plans.clear()
            self.forget_structs()
        return made

    def _remove(self, window: Window) -> None:
        self.windows.remove(window)
        self.windows.clear_row(window.number)
        self._window_changed(window.number)

    def _window_changed(self, number: int) -> None:
        self.forget_launches()
        self.generation += 1
        if self._packed_table != self.windows.table:
            self._packed_table = self.windows.table
            self._structs.clear()
        for device_team in self.device_teams:
            device_team.update_window(number)

    def launch(self, plan: Plan, buffers: tuple[Buffer, ...], called: bytes, arguments: bytes, stream: Any) -> None:
        """Launch a kernel on `stream`, after the communicator's last launch on any stream."""
        parameters = self.parameters(plan, buffers, called, arguments)
        self.order.enqueue(plan.function, plan.grid, plan.threads, parameters, stream, plan.early)

    def parameters(self, plan: Plan, buffers: tuple[Buffer, ...], called: bytes, arguments: bytes) -> bytes:
        """Return the bytes of the kernel's only parameter.

        `called` is a packed `Called`, `arguments` are the operation's packed arguments.
        """
        places = self.places(buffers[0].address, buffers[-1].address) if buffers else NO_LOCATIONS
        return self.struct_for(plan.operation, plan.early) + places + called + arguments

    def places(self, send: int, recv: int) -> bytes:
        """Return the locations of a call's first (send) and last (receive) address."""
        return self.windows.places(send, recv) if self.layout.windows else NO_LOCATIONS

    def _late(self, calls: RecordedCalls) -> tuple[list[int], list[int]]:
        """Return `calls.late()`, or empty lists if the leases cannot be read; any thread."""
        with suppress(RuntimeError), self.device.attached():
            if HEAP.made is self.heap:
                return calls.late()
        return [], []

    def progress(self) -> dict[str, Any]:
        """Return how many operations each rank has begun, as far as this rank can see.

        Operations are counted on channel 0, which all kernels of collectives use. The result includes a hash of this
        rank's calls. The method does not wait for the device.
        """
        if HEAP.made is not self.heap:
            raise RuntimeError("the heap that the lease is of has been closed")
        nbytes = layout.ENTERED_OFFSET + 8 * self.size
        words = self.device.peek(self.bases[self.rank] + layout.HEADER_NBYTES + layout.CALLS_NBYTES, nbytes)
        (finished,) = struct.unpack_from("<Q", words)
        entered = struct.unpack_from(f"<{self.size}Q", words, layout.ENTERED_OFFSET)
        return {"epoch": finished >> 32, "hash": finished & 0xFFFFFFFF, "entered": [each >> 32 for each in entered]}

    def drain(self) -> None:
        """Wait on the host until all launches have ended, and raise their errors."""
        self.order.synchronize()
        self.errors.check()
