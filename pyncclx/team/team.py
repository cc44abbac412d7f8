"""What a communicator holds on the device: its lease, its peers' leases, its error record, its stream order.

A Team is made at the communicator's first operation on device arrays, by all its ranks together.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

import mpi_bootstrap

from ..arrays.buffers import Buffer
from ..backends import Device, Event, Function, Repeated, Upload, Watch
from ..errors import NotSupported
from ..memory import layout
from ..memory.heap import Heap, process_heap
from ..memory.mapped import Window
from ..memory.parameters import NO_PLACES, TeamStruct
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from . import device_errors, kernel_errors, members
from .windows import TeamWindows

OPERATIONS = (
    "Barrier",
    "Bcast",
    "Reduce",
    "Allreduce",
    "Allgather",
    "Reduce_scatter_block",
    "Alltoall",
    "Alltoallv",
    "Dispatch",
    "Combine",
    "Collect",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Allgatherv",
    "Reduce_scatter",
    "Scan",
    "Exscan",
    device_errors.OPERATION,
    "Alltoallw",
    "Neighbor_allgather",
    "Neighbor_allgatherv",
    "Neighbor_alltoall",
    "Neighbor_alltoallv",
    "Neighbor_alltoallw",
)


class Plan(NamedTuple):
    """How calls of one kind run: with the same operation, elements, and size."""

    number: int  # of the operation
    function: Function
    grid: int
    threads: int  # of a block
    early: bool = False  # takes few multiprocessors: launched early, it waits for the kernel before, and lets the next


class Producer(NamedTuple):
    """Whose work a call waits for."""

    stream: int
    of_torch: bool


class RememberedLaunch(NamedTuple):
    """A call that came before: what it takes to launch it once more."""

    plan: Plan
    parameters: bytes  # of the kernel
    producers: tuple[Producer, ...]  # of the buffers, where they name any


class Dependent(Protocol):
    """Memory that somebody holds beside the lease; `close` takes it out of `Team.dependents`."""

    nbytes: int

    def close(self) -> None: ...


class KernelTeam(Dependent, Protocol):
    """What a program's own kernels are told of the communicator; `close` takes it out of `Team.device_teams`."""

    def add_windows(self) -> None: ...


class Team:
    """The device side of one communicator on one rank; made and closed by all its ranks together."""

    def __init__(self, comm: MPI.Intracomm, device: Device) -> None:
        self.device = device
        self.rank, self.size = comm.rank, comm.size
        self.heap: Heap = mpi_bootstrap.agree(comm, lambda: process_heap(device))
        self.lease = mpi_bootstrap.agree(comm, self.heap.reserve, undo=self.heap.release)
        try:
            self.members = members.meet(comm, device, self.heap, self.lease.nbytes)
            self.nvlinked = members.nvlinked(self.members)  # else no lines, and nothing atomic in a peer's memory
            self.threads = min(member.threads for member in self.members)
            self.layout = self._plan()
            self.lease = self.heap.trim(self.lease, self.layout.nbytes)
            mpi_bootstrap.agree(comm, lambda: self.heap.clear(self.lease))
        except BaseException:
            self.heap.release(self.lease)
            raise
        offsets = comm.allgather(self.lease.offset)
        self.watch: Watch = mpi_bootstrap.agree(comm, lambda: device.allocate_watch(8 * len(layout.WATCH)))
        self._words = self.watch.array.data  # indexing it costs a third
        self.bases = [self.heap.base(m.uid) + offset for m, offset in zip(self.members, offsets, strict=True)]
        self.windows = TeamWindows(device)
        self.pack()
        self.functions: dict[tuple[str, ...], Function] = {}  # kernels every rank of the team has loaded
        self.plans: dict[tuple[Any, ...], Plan] = {}  # by what they depend on
        self.dependents: list[Dependent] = []  # what else the communicator holds
        self.device_teams: list[KernelTeam] = []  # what its users' kernels are told of it
        self.claims = [self.heap.memory.address + self.lease.offset + layout.LEASE_OVERFLOW_OFFSET]
        self._scratch: list[tuple[int, Upload]] = []  # captured launches may use earlier ones
        self._stream: Any = None

    def _plan(self) -> layout.Layout:
        nbytes = min(member.offer_nbytes for member in self.members)
        sharing = members.sharing(self.members)
        channels = max(1, min(member.max_channels for member in self.members) // sharing)
        try:
            planned = layout.plan(nbytes, self.size, channels, self.nvlinked)
            return replace(planned, limits=self.members[0].limits, sharing=sharing)
        except ValueError as error:  # on all ranks
            raise NotSupported(f"{error}; set PYNCCLX_HEAP higher than {self.heap.nbytes} bytes") from error

    def require_links(self, operation: str) -> None:
        """Refuse what has to be atomic in a peer's memory, where it would not be."""
        if not self.nvlinked:
            raise NotSupported(
                f"{operation}: it changes words of a peer's memory atomically: that takes NVLink between all GPUs, and "
                "that every rank sees those of the others; use Put and Get, under MPI's locks"
            )

    def pack(self) -> None:
        """Pack what kernels are told of the team from now on."""
        timeout_ns = int(min(m.timeout_s for m in self.members) * 1e9)


        def packed(operation: int, early: bool) -> bytes:
            return TeamStruct.of(
                self.layout,
                rank=self.rank,
                operation=operation,
                timeout_ns=timeout_ns,
                watch=self.watch.address,
                windows=self.windows.table,
                base=self.bases,
                early=early,
            ).pack()

        # for each operation, [not launched early, launched early]
        self.packed = [[packed(number, early) for early in (False, True)] for number in range(len(OPERATIONS))]
        self.remembered: dict[Hashable, RememberedLaunch] = {}  # calls that came before, by the keys of their arguments

    def add_window(self, comm: MPI.Intracomm, nbytes: int) -> Window:
        """Allocate memory that all ranks map. Collective."""
        window = self.windows.allocate(comm, nbytes)
        self._tell_windows()
        return window

    def register(self, comm: MPI.Intracomm, buffer: Buffer) -> Window:
        """Map the memory that an array of each rank is in. Collective."""
        window = self.windows.register(comm, buffer)
        self._tell_windows()
        return window

    def deregister(self, comm: MPI.Intracomm, window: Window) -> None:
        """Unmap what was registered, when no rank uses it any more. Collective."""
        self.windows.deregister(comm, window)
        self._tell_windows()

    def _tell_windows(self) -> None:
        """Tell kernels from now on which windows there are."""
        if not self.layout.windows:  # as on all ranks: what has been chosen is chosen anew
            self.layout = replace(self.layout, windows=True)
            self.plans.clear()
        self.pack()
        for device_team in self.device_teams:
            device_team.add_windows()

    def scratch(self, nbytes: int) -> int:
        """The address of memory for one operation at a time, which lasts as long as the team: graphs may use it.

        Raises
        ------
        NotSupported
            If there is not enough, and the current stream is being captured: memory cannot be allocated then.
        """
        if not self._scratch or self._scratch[-1][0] < nbytes:
            stream, enough = self.device.current_stream(), 1 << (nbytes - 1).bit_length()
            if self.device.is_capturing(stream):
                raise NotSupported(f"{nbytes} bytes of scratch memory in a captured graph: call it once before")
            self._scratch.append((enough, self.device.allocate_temporary(enough, stream)))
        return self._scratch[-1][1].address

    @property
    def scratch_nbytes(self) -> int:
        """Bytes that `scratch` has allocated."""
        return sum(nbytes for nbytes, _ in self._scratch)

    def launch(self, plan: Plan, buffers: tuple[Buffer, ...], arguments: bytes, stream: Any) -> None:
        """Launch a kernel on `stream`, after the last launch on this communicator on whatever stream.

        `arguments`: the bytes after the Team in the kernel's only parameter.
        """
        _, function, grid, threads, early = plan
        self.enqueue(function, grid, threads, self.parameters(plan, buffers, arguments), stream, early)

    def launch_again(self, remembered: RememberedLaunch, stream: Any) -> None:
        """The same once more."""
        (_, function, grid, threads, early), parameters, _ = remembered
        self.enqueue(function, grid, threads, parameters, stream, early)

    def parameters(self, plan: Plan, buffers: tuple[Buffer, ...], arguments: bytes) -> bytes:
        """All of the kernel's parameter."""
        places = self.windows.places(buffers) if self.layout.windows else NO_PLACES
        return self.packed[plan.number][plan.early] + places + arguments

    def enqueue(
        self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """The same with all of the kernel's parameter."""
        if stream is not self._stream or OPEN_RECEIVES:
            self.follow(stream)
        self.device.launch(function, grid, threads, parameters, stream, early)

    def repeat(self, repeated: Repeated, stream: Any) -> None:
        """The same with a launch that was made ready."""
        if stream is not self._stream or OPEN_RECEIVES:
            self.follow(stream)
        repeated.launch(stream)

    def follow(self, stream: Any) -> None:
        """What is enqueued on `stream` next comes after the last launch on this communicator, and before no receive."""
        let_receives_leave()
        if self._stream is not None and self._stream != stream:
            self.device.order(self._stream, stream)
        self._stream = stream

    def mark(self) -> Event:
        """The end of what was launched last."""
        event = self.device.event()
        event.record(self._stream)
        return event

    def drain(self) -> None:
        """Wait on the host until everything launched on this communicator is over, and check it."""
        self.device.synchronize(self._stream)
        self.check()

    def check(self) -> None:
        """Raise what a kernel of this communicator has recorded since the last look.

        Raises
        ------
        PeerTimeout, Aborted
            From then on at every call: ranks no longer agree where they are. Free the communicator.
        CapacityExceeded, ValueError, MPI.Exception
            Once; the communicator goes on. A call that was about to be launched has not been made then.
        """
        if self._words[layout.FAILURE]:
            raise kernel_errors.failure(self._record("u8"), OPERATIONS, self.rank)
        if self._words[layout.OVERFLOW]:
            error = kernel_errors.overflow(self._record("i8"), OPERATIONS, self.rank)
            self._words[layout.OVERFLOW] = 0  # then the claim: a kernel that has it may write the record at once
            for claim in self.claims:
                self.device.fill_zero(claim, 4)
            raise error

    def _record(self, dtype: str) -> dict[str, int]:
        return dict(zip(layout.WATCH, self.watch.array.view(dtype).tolist(), strict=True))

    def abort(self) -> None:
        """Make every kernel of this communicator on this rank leave its waits."""
        self.watch.array[0] = 1

    def close(self) -> None:
        """Give the lease back. Local: the ranks have met since their last kernel ended."""
        for holders in (self.dependents, self.device_teams):
            while holders:
                holders[-1].close()
        self.heap.release(self.lease)
        self.watch.close()
        self.windows.close()
        self._scratch.clear()
