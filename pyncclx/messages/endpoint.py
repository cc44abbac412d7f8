"""A communicator's part of sending and receiving: it checks arguments, launches kernels, and reads their errors."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable
from functools import cached_property
from typing import Any

from mpi4py import MPI

from ..arrays.vectors import integer
from ..backends import Device, Function
from ..errors import Aborted, MPIError, PeerTimeout
from ..memory import error_words, layout
from ..memory.parameters import NO_PLACES, TeamStruct
from ..requests.open_receives import LOCK
from ..system import settings
from ..team.launch_order import LaunchOrder
from ..team.team import Team
from .postbox import POSTBOX

#: Names of the methods; their indices are in error records.
OPERATIONS = (
    *("Send", "Ssend", "Isend", "Issend", "Recv", "Irecv"),
    *("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace"),
    *("Send_init", "Ssend_init", "Rsend_init", "Recv_init", "Startall"),
)
_serials = itertools.count(1)


class Endpoint:
    """One communicator's messages; each rank makes its own.

    It lasts until its communicator has been freed and its last message is over, which may be later.
    Kernels take a `Team` of one rank: its error record and timeout are all that they need of it.

    Attributes
    ----------
    device : Device
    postbox : Postbox
        What all communicators of the process share.
    rank, size : int
        Of this process, and of those that messages go to: of an intercommunicator, the remote group.
    team : Team or None
        Of the communicator, once it has one: its windows.
    watch : Watch
        Error record.
    known_buffers : dict
        Buffers of earlier messages, by the key of their argument, up to their stream.
    """

    def __init__(self, comm: MPI.Comm, device: Device) -> None:
        self.serial = next(_serials)
        self.device, self.postbox = device, POSTBOX.get()
        self._world = _world_ranks(comm)
        self.rank, self.size = comm.rank, len(self._world)
        self.team: Team | None = None
        self.watch = device.allocate_watch(error_words.NBYTES)
        header = self.postbox.bounce.headers.take()
        timeout_ns = int(settings.TIMEOUT.get() * 1e9)
        alone = layout.Layout(0, 1, 1, 0, 0)
        self._teams = {
            name: TeamStruct.of(
                alone, rank=0, operation=number, timeout_ns=timeout_ns, watch=self.watch.address, base=[header]
            ).pack()
            + NO_PLACES
            for number, name in enumerate(OPERATIONS)
        }
        self._readers: set[int] = set()  # ranks known to have opened the bounce memory
        self._streams: dict[int, Any] = {}  # used since the last `drain`; two threads launch: see watcher.py
        self._stream: Any = None  # the last of them
        self.known_buffers: dict[Hashable, tuple[Any, ...]] = {}
        weakref.finalize(self, self.postbox.bounce.headers.retired.append, (header, self.watch)).atexit = False

    @cached_property
    def order(self) -> LaunchOrder:
        """The order of launches that graphs capture of persistent requests."""
        return LaunchOrder(self.device)

    @cached_property
    def highest_tag(self) -> int:
        """The largest tag that MPI takes."""
        return int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)

    def is_read_by(self, rank: int) -> bool:
        """Whether a rank is known to have opened this process's bounce memory."""
        if rank not in self._readers and self.postbox.readers.has(self.number_of(rank)):
            self._readers.add(rank)
        return rank in self._readers

    def number_of(self, rank: int) -> int:
        """Return the number by which this process identifies a rank: in MPI.COMM_WORLD, or else on this endpoint."""
        world = self._world[rank]
        return world if world != MPI.UNDEFINED else (self.serial << 32) + rank

    def launch(self, operation: str, kernel: str, grid: int, threads: int, arguments: bytes, stream: Any) -> None:
        """Launch a kernel of the postbox for an operation, on `stream`; `arguments` follow its Team."""
        parameters = self._teams[operation] + arguments
        self.enqueue(self.postbox.functions[kernel], grid, threads, parameters, stream)

    def enqueue(self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any) -> None:
        """Launch a kernel on `stream`, given all bytes of its parameter."""
        if stream is not self._stream:
            self._streams[getattr(stream, "ptr", 0)] = self._stream = stream
        self.device.launch(function, grid, threads, parameters, stream)

    def drain(self) -> None:
        """Wait on the host for everything launched so far, and check it."""
        with LOCK:
            streams, self._streams, self._stream = self._streams, {}, None
        for stream in streams.values():
            if not self.device.is_capturing(stream):  # what a graph holds does not run now
                self.device.synchronize(stream)
        self.check()

    def check(self) -> None:
        """Raise what a kernel of this communicator has recorded, if any; from then on at every call.

        What has ended the thread that looks for open receives is raised, too, by one call.
        """
        self.postbox.receives.check()
        if not self.watch.array[error_words.FAILURE]:
            return
        record = error_words.read(self.watch)
        operation = f"{OPERATIONS[record.operation]} with tag {record.channel}"
        if record.failure == error_words.ABORTED:
            raise Aborted(f"{operation}: rank {self.rank} was told to stop waiting for rank {record.peer}")
        raise PeerTimeout(operation, record.epoch, self.rank, record.peer, record.expected, record.seen)

    def check_send(self, operation: str, dest: Any, tag: Any) -> tuple[int, int]:
        """Return both as integers; raise as MPI does if there is no such rank or tag, and what kernels recorded."""
        self.check()
        dest, tag = integer(dest), integer(tag)
        if not (0 <= dest < self.size or dest == MPI.PROC_NULL):
            raise MPIError(MPI.ERR_RANK, f"{operation}: dest is {dest}; {self._ranks}, or MPI.PROC_NULL")
        if not 0 <= tag <= self.highest_tag:
            raise MPIError(MPI.ERR_TAG, f"{operation}: tag is {tag}; it can be 0 to {self.highest_tag}")
        return dest, tag

    def check_receive(self, operation: str, source: Any, tag: Any) -> tuple[int, int]:
        """Do the same for a receive, which may have wildcards."""
        self.check()
        source, tag = integer(source), integer(tag)
        if not (0 <= source < self.size or source in (MPI.PROC_NULL, MPI.ANY_SOURCE)):
            ranks = f"{self._ranks}, MPI.ANY_SOURCE or MPI.PROC_NULL"
            raise MPIError(MPI.ERR_RANK, f"{operation}: source is {source}; {ranks}")
        if not (0 <= tag <= self.highest_tag or tag == MPI.ANY_TAG):
            text = f"{operation}: tag is {tag}; it can be 0 to {self.highest_tag}, or MPI.ANY_TAG"
            raise MPIError(MPI.ERR_TAG, text)
        return source, tag

    @property
    def _ranks(self) -> str:
        return f"the communicator's ranks are 0 to {self.size - 1}"

    def abort(self) -> None:
        """Make every kernel of this endpoint leave its waits."""
        self.watch.array[0] = 1


def _world_ranks(comm: MPI.Comm) -> list[int]:
    """Return, for each rank that messages go to, its rank in MPI.COMM_WORLD, or MPI.UNDEFINED."""
    group = comm.Get_remote_group() if isinstance(comm, MPI.Intercomm) else comm.Get_group()
    world = MPI.COMM_WORLD.Get_group()
    ranks = group.Translate_ranks(None, world)
    group.Free()
    world.Free()
    return list(ranks)
