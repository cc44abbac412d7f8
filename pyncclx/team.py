"""What a communicator holds on the device: its lease, its peers' leases, its error record, its stream order.

A Team is made at the communicator's first operation on device arrays, by all its ranks together.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

import mpi_bootstrap

from . import device_errors, layout, tuning
from .buffers import Buffer
from .devices import Device, Event, Function, Repeated, Upload, Watch
from .errors import Aborted, CapacityExceeded, MPIError, NotSupported, PeerTimeout
from .heap import Heap, Lease, process_heap
from .symmetric import Window, allocate_window

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
DEFAULT_TIMEOUT_S = 300.0
NO_PLACES = bytes(layout.PLACES.size)
TIMED_OUT, ABORTED = 1, 2  # Watch::failure
BAD_COUNTS, TRUNCATED, BAD_EXPERT, BAD_SEGMENT = 2, 3, 4, 5  # Watch::overflow; 1: cut


@dataclass(frozen=True, slots=True)
class Member:
    """What the ranks tell each other before they make a Team."""

    hostname: str
    device: str  # Device.identity
    architecture: str
    max_channels: int
    threads: int
    uid: bytes  # of the heap
    ipc_handle: bytes  # of the heap; empty: it travels as a file descriptor
    heap_nbytes: int
    offer: int
    timeout_s: float
    limits: tuning.Limits  # rank 0's count


class Plan(NamedTuple):
    """How calls of one kind run: with the same operation, elements, and size."""

    number: int  # of the operation
    function: Function
    grid: int
    threads: int  # of a block


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
        self.members = self._meet(comm)
        self.threads = min(member.threads for member in self.members)
        self.layout, self.lease = self._take_lease(comm)
        offsets = comm.allgather(self.lease.offset)
        self.watch: Watch = mpi_bootstrap.agree(comm, lambda: device.allocate_watch(8 * len(layout.WATCH)))
        self._words = self.watch.array.data  # indexing it costs a third
        self.bases = [self.heap.base(m.uid) + offset for m, offset in zip(self.members, offsets, strict=True)]
        self.windows: list[Window] = []
        self._spans: list[tuple[int, int, int]] = []  # of their addresses, and their numbers: for a look in each call
        self._tables: list[Upload] = []  # of the windows; captured launches may use earlier ones
        self.packed = self._pack()
        self.functions: dict[tuple[str, ...], Function] = {}  # kernels every rank of the team has loaded
        self.plans: dict[tuple[Any, ...], Plan] = {}  # by what they depend on
        self.dependents: list[Dependent] = []  # what else the communicator holds
        self.device_teams: list[KernelTeam] = []  # what its users' kernels are told of it
        self.numba: Any = None  # the workspace of collectives written in Python
        self.claims = [self.heap.memory.address + self.lease.offset + layout.LEASE_OVERFLOW_OFFSET]
        self._scratch: list[tuple[int, Upload]] = []  # captured launches may use earlier ones
        self._stream: Any = None

    def _meet(self, comm: MPI.Intracomm) -> list[Member]:
        """Tell each other who we are; map the heaps that this process has not mapped yet."""
        device, heap = self.device, self.heap
        timeout_s = float(os.environ.get("PYNCCLX_TIMEOUT", DEFAULT_TIMEOUT_S))
        mine = tuning.limits if comm.rank == 0 else lambda *_: ()
        limits = mpi_bootstrap.agree(comm, lambda: mine(device.kind, comm.size))
        members: list[Member] = comm.allgather(
            Member(
                MPI.Get_processor_name(),
                device.identity,
                device.architecture,
                device.max_channels,
                device.threads,
                heap.uid,
                heap.memory.ipc_handle,
                heap.memory.nbytes,
                heap.offer(),
                timeout_s,
                limits,
            )
        )
        _check_members(members, device, warn=comm.rank == 0)
        wanted = {r for r, m in enumerate(members) if m.uid != heap.uid and m.uid not in heap.peers}
        if heap.memory.ipc_handle:
            handles: dict[int, int | bytes] = {rank: members[rank].ipc_handle for rank in wanted}
        else:
            handles = {**mpi_bootstrap.allgather_fds(comm, heap.memory.fd, wanted)}
        peers = {members[rank].uid: (handle, members[rank].heap_nbytes) for rank, handle in handles.items()}
        mpi_bootstrap.agree(comm, lambda: heap.map_all(peers))
        return members

    def _take_lease(self, comm: MPI.Intracomm) -> tuple[layout.Layout, Lease]:
        nbytes = min(member.offer for member in self.members)
        channels = min(member.max_channels for member in self.members)
        lease = mpi_bootstrap.agree(comm, lambda: self.heap.take(nbytes), undo=self.heap.release)
        try:
            return replace(layout.plan(nbytes, self.size, channels), limits=self.members[0].limits), lease
        except ValueError as error:  # on all ranks
            self.heap.release(lease)
            raise NotSupported(f"{error}; set PYNCCLX_HEAP higher than {self.heap.nbytes} bytes") from error

    def _pack(self) -> list[bytes]:
        """What kernels are told of the team, for each operation."""
        timeout_ns = int(min(m.timeout_s for m in self.members) * 1e9)
        table = self._tables[-1].address if self._tables else 0
        return [
            layout.pack_team(self.layout, self.rank, number, timeout_ns, self.watch.address, table, self.bases)
            for number in range(len(OPERATIONS))
        ]

    def add_window(self, comm: MPI.Intracomm, nbytes: int) -> Window:
        """Allocate memory that all ranks map. Collective."""
        window = allocate_window(comm, self.device, len(self.windows), nbytes)
        self.windows.append(window)
        begin = window.memory.address
        self._spans.append((begin, begin + window.memory.nbytes, window.number))
        self._tables.append(self.device.upload(layout.pack_windows([window.bases for window in self.windows])))
        self.packed = self._pack()
        for device_team in self.device_teams:
            device_team.add_windows()
        return window

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

    def window(self, address: int) -> Window | None:
        """The window that an address of this rank is in; None if it is in memory that peers have not mapped."""
        return next((window for window in self.windows if window.holds(address)), None)

    def places(self, buffers: tuple[Buffer, ...]) -> bytes:
        """Where a call's send buffer, the first, and receive buffer, the last, lie: two `Place`."""
        if not buffers:
            return NO_PLACES
        send, recv = self._place(buffers[0].address), self._place(buffers[-1].address)
        return layout.PLACES.pack(*send, *recv)

    def _place(self, address: int) -> tuple[int, int]:
        for begin, end, number in self._spans:
            if begin <= address < end:
                return number + 1, begin
        return 0, 0

    def launch(self, plan: Plan, buffers: tuple[Buffer, ...], arguments: bytes, stream: Any) -> None:
        """Launch a kernel on `stream`, after the last launch on this communicator on whatever stream.

        `arguments`: the bytes after the Team in the kernel's only parameter.
        """
        number, function, grid, threads = plan
        places = self.places(buffers) if self.windows else NO_PLACES
        self.enqueue(function, grid, threads, self.packed[number] + places + arguments, stream)

    def enqueue(self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any) -> None:
        """The same with all of the kernel's parameter."""
        if stream is not self._stream:
            self._follow(stream)
        self.device.launch(function, grid, threads, parameters, stream)

    def repeat(self, repeated: Repeated, stream: Any) -> None:
        """The same with a launch that was made ready."""
        if stream is not self._stream:
            self._follow(stream)
        repeated.launch(stream)

    def _follow(self, stream: Any) -> None:
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
            Once; the communicator goes on.
        """
        if self._words[layout.FAILURE]:
            raise self._failure()
        if self._words[layout.OVERFLOW]:
            error = self._overflow()
            self._words[layout.OVERFLOW] = 0  # then the claim: a kernel that has it may write the record at once
            for claim in self.claims:
                self.device.fill_zero(claim, 4)
            raise error

    def _failure(self) -> Exception:
        record = dict(zip(layout.WATCH, map(int, self.watch.array), strict=True))
        operation, epoch, peer = OPERATIONS[record["operation"]], record["epoch"], record["peer"]
        if operation == device_errors.OPERATION:
            return device_errors.failure(record, self.rank, record["failure"] == ABORTED)
        if record["failure"] == ABORTED:
            return Aborted(f"{operation}: rank {self.rank} was told to stop waiting for rank {peer} (epoch {epoch})")
        return PeerTimeout(operation, epoch, self.rank, peer, record["expected"], record["seen"])

    def _overflow(self) -> Exception:
        record = dict(zip(layout.WATCH, self.watch.array.view("int64").tolist(), strict=True))
        operation, source = OPERATIONS[record["operation"]], record["source"]
        wanted, capacity = record["wanted"], record["capacity"]
        if operation == device_errors.OPERATION:
            return device_errors.misuse(record)
        if record["overflow"] == BAD_COUNTS:
            return ValueError(
                f"{operation}: send count {wanted} for rank {source} is negative or reaches past the {capacity} rows "
                f"of sendbuf; nothing was sent to it. An earlier call was given these counts on the device"
            )
        if record["overflow"] == BAD_EXPERT:
            return ValueError(
                f"{operation}: token {source} of rank {self.rank} chose expert {wanted}; there are {capacity}, and -1 "
                "chooses none. An earlier call was given this number on the device, and left the choice out"
            )
        if record["overflow"] == BAD_SEGMENT:
            return ValueError(
                f"{operation}: entry {source} of the segments' counts, lengths or ids is {wanted}; 0 to {capacity} is "
                "possible there. An earlier call was given this number on the device, and took it for none"
            )
        if record["overflow"] == TRUNCATED:
            text = f"rank {source} sent {wanted} bytes, the receive count for it on rank {self.rank} is {capacity}"
            return MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
        return CapacityExceeded(self.rank, source, wanted, capacity)

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
        for window in self.windows:
            window.close()
        self.windows.clear()
        self._spans.clear()
        self._scratch.clear()


def _check_members(members: list[Member], device: Device, *, warn: bool) -> None:
    """Can these ranks form a team? Every rank comes to the same answer."""
    if len(members) > layout.MAX_RANKS:
        raise NotSupported(
            f"a communicator of {len(members)} ranks: at most {layout.MAX_RANKS} ranks of one node can use device "
            "arrays; Split it by node"
        )
    nodes = sorted({member.hostname for member in members})
    if len(nodes) > 1:
        where = ", ".join(nodes)
        raise NotSupported(f"ranks on several nodes ({where}): device arrays move inside one node; Split it by node")
    architectures = sorted({member.architecture for member in members})
    if len(architectures) > 1:
        raise NotSupported(
            f"ranks on unlike devices ({', '.join(architectures)}): use GPUs of one kind, and set PYNCCLX_DEVICE "
            "alike on all ranks"
        )
    shared = {m.device for m in members if sum(other.device == m.device for other in members) > 1}
    if shared and warn:
        warnings.warn(
            f"several ranks share a GPU ({', '.join(sorted(shared))}): correct, but slow. Call comm.select_device() "
            "before the first array is made, or make GPU `local rank` current",
            RuntimeWarning,
            stacklevel=2,
        )
