"""The endpoint of a communicator's messages: checks, launches and kernels' errors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import Topology
from mpi_bootstrap.presence import Note

from ..arrays.vectors import integer
from ..backends import Device, Function
from ..errors import Aborted, MPIError, PeerTimeout
from ..memory import error_words
from ..recording.calls import Calls
from ..recording.failures import noted
from ..recovery import ulfm
from ..recovery.detector import DETECTOR
from ..recovery.losses import Loss
from ..recovery.meetings import explained
from ..requests import late
from ..requests.open_receives import LOCK
from ..system import settings
from ..system.bounded import BoundedCache
from ..team.kept import UsedStreams
from ..team.launch_order import LaunchOrder
from ..team.streams import ANY_CALLER, Caller
from ..team.team import Team
from .arguments import teams_of
from .envelope import Sender
from .memory.headers import Used
from .partitioned.contacts import contact_tag, highest_tag
from .partitioned.letters import PartitionedEnds
from .peers import Peers
from .postbox import POSTBOX

#: Names of the methods; their indices are in error records.
OPERATIONS = (
    *("Send", "Ssend", "Isend", "Issend", "Recv", "Irecv"),
    *("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace"),
    *("send", "recv"),  # all methods for objects
    *("Send_init", "Ssend_init", "Rsend_init", "Recv_init", "Startall", "Psend_init", "Precv_init"),
)
_serials = itertools.count(1)


class Endpoint:
    """One communicator's state for messages; each rank makes its own.

    It lasts until its communicator has been freed and its last message is complete, which may be later.
    Kernels take a `Team` of one rank, of which they use only the error record and the timeout.

    Attributes
    ----------
    device : Device
    postbox : Postbox
        The message context that all communicators of the process share.
    rank, size : int
        This process's rank, and the number of ranks to send to; in an intercommunicator, those of the remote group.
    team : Team or None
        The communicator's team, once it has one; messages use its windows.
    caller : Caller
        The communicator's stream and whether its calls block.
    watch : Watch
        Error record.
    teams : dict of str to bytes
        For each operation, the packed `Team` that begins its kernels' parameter.
    partitioned : PartitionedEnds
    calls : Calls or None
        Records messages, in `ring`.
    timeout_s : float
        PYNCCLX_TIMEOUT, read when the endpoint was made.
    failure : Exception or None
        Raised by every call after a wait in MPI has timed out.
    peers : Peers
    plans : dict
        Cached plans by the keys of their arguments.
    broken : set of (int, int)
        Rank and clock of messages whose data never arrived.
    id, uids, comm, world_ranks, loss
        See `recovery.losses.Watched`. The detector asks only MPI, and includes failures found in MPI.COMM_WORLD.
    """

    id: bytes = b""
    uids: Sequence[bytes] = ()
    comm: MPI.Comm | None

    def __init__(
        self,
        comm: MPI.Comm,
        device: Device,
        calls: Calls | None = None,
        topology: Callable[[], Topology | None] = lambda: None,
    ) -> None:
        self.serial = next(_serials)
        self.device, self.postbox = device, POSTBOX.get()
        self.watcher = self.postbox.receives.watcher
        self.world_ranks = ulfm.world_ranks(comm)
        self.highest_tag, self._contact_tag = highest_tag(), contact_tag()
        self.rank, self.size = comm.rank, len(self.world_ranks)
        self._ranks = f"the communicator's ranks are 0 to {self.size - 1}"
        self.team: Team | None = None
        self.calls, self.ring = calls, None if calls is None else calls.ring
        self.caller: Caller = ANY_CALLER
        self.watch = device.allocate_watch(error_words.NBYTES)
        header = self.postbox.bounce.headers.take()
        self.timeout_s = settings.TIMEOUT.get()
        self.failure: Exception | None = None
        self.teams = teams_of(OPERATIONS, header=header, watch=self.watch.address, timeout_s=self.timeout_s)
        self.peers = Peers(self.serial, self.postbox.readers, self.world_ranks, topology)
        self._streams = UsedStreams(device)  # used by all threads since the last `drain`
        self.plans: BoundedCache[Hashable, Any] = BoundedCache()
        self.comm = MPI.Intercomm(comm) if isinstance(comm, MPI.Intercomm) else MPI.Comm(comm)
        self.partitioned = PartitionedEnds()
        self.loss: Loss | None = None
        self.senders: dict[int, Sender] = {}  # rank to sender whose data kernels here have fetched
        self.broken: set[tuple[int, int]] = set()
        if comm.size > 1 or isinstance(comm, MPI.Intercomm):
            DETECTOR.get().watch(self)
        self.postbox.bounce.headers.take_back_after(self, Used(header, self.watch, self._streams))

    @cached_property
    def order(self) -> LaunchOrder:
        """The order of persistent requests' launches that graphs capture."""
        return LaunchOrder(self.device)

    def launch(self, operation: str, kernel: str, grid: int, threads: int, arguments: bytes, stream: Any) -> None:
        """Launch a kernel of the postbox on `stream`, with its `Team` and `arguments`."""
        if stream is not self._streams.last and stream is not self._streams.before:
            self._streams.add(stream)
        function, parameters = self.postbox.functions[kernel], self.teams[operation] + arguments
        self.device.launch(function, grid, threads, parameters, stream)

    def enqueue(self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any) -> None:
        """Launch a kernel on `stream` with the complete bytes of its parameter."""
        self._streams.add(stream)
        self.device.launch(function, grid, threads, parameters, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Enqueue a copy on `stream`."""
        self._streams.add(stream)
        self.device.copy(to, source, nbytes, stream)

    def drain(self) -> None:
        """Wait on the host for all work enqueued but not captured; raise recorded errors."""
        with LOCK:
            used = list(self._streams.values())
            self._streams.clear()
        for stream in itertools.filterfalse(self.device.is_capturing, used):
            self.device.synchronize(stream)
        self.check()

    def check(self) -> None:
        """Raise a recorded error: a kernel's, a send's or, once, the monitor thread's."""
        if self.watcher.failure is not None:
            self.postbox.receives.check()
        if late.INTERRUPTED:
            late.raise_kept()
        if self.failure is not None:
            raise noted(self.failure)
        if not self.watch.array[error_words.FAILURE]:
            return
        record = error_words.read(self.watch)
        if record.failure == error_words.LOST or (self.loss is not None and self.loss.note is not None):
            raise noted(self._take_loss())
        operation = f"{OPERATIONS[record.operation]} with tag {record.channel}"
        if record.failure == error_words.ABORTED:
            raise noted(Aborted(f"{operation}: rank {self.rank} was made to stop waiting for rank {record.peer}"))
        raise noted(PeerTimeout(operation, record.epoch, self.rank, record.peer, record.expected, record.seen))

    # Ranks that fail

    def lose(self, loss: Loss) -> None:
        """End the waits of kernels for failed ranks; all waits after a revocation."""
        before = () if self.loss is None else self.loss.ranks
        self.loss = loss if len(loss.ranks) > len(before) or loss.note is not None else self.loss
        if loss.note is not None:
            self.abort()
            self.watch.array[error_words.FAILURE] = error_words.LOST
        for rank in set(loss.ranks).difference(before):
            sender, broken = self.senders.get(rank), frozenset[int]()
            bounce = self.postbox.opened.bounce_address(sender) if sender is not None else None
            if sender is not None and bounce is not None:
                broken = self.postbox.bounce.release_receives(sender.uid, bounce)
            self.broken.update((rank, clock) for clock in broken)
            self.postbox.bounce.end_sends(self.peers.numbers[rank])
            if self.partitioned.let_go(rank) or broken:
                self.watch.array[error_words.FAILURE] = error_words.LOST

    @property
    def is_of_messages(self) -> bool:
        """Whether no partitioned message is active; those may wait for peers' later calls."""
        return not self.partitioned.are_active()

    def may_launch(self) -> bool:
        """Return whether graphs hold messages of this endpoint."""
        return "order" in vars(self) and self.order.has_graphs

    def is_busy(self) -> bool:
        """Return whether a kernel runs or is enqueued; captured kernels do not count."""
        streams = {0: None, **self._streams} if self.device.name == "host" else dict(self._streams)
        return any(not self.device.is_idle(stream) for stream in streams.values())

    def give_up(self, kind: str) -> None:
        """End the waits of kernels here. Other ranks raise when they wait for this one."""
        self.lose(Loss(note=Note(self.id, kind, self.rank, -1, 0, 0, 0, time.monotonic_ns(), "")))

    def given_up(self) -> None:
        """Return None: a wait for a message that timed out concerns no other rank."""

    def _take_loss(self) -> Exception:
        """Return the exception for lost messages; clear it if other ranks continue."""
        assert self.loss is not None
        if self.loss.note is None:
            self.broken.clear()
            self.watch.array[error_words.FAILURE] = 0
        return self.loss.exception("a message")

    def failure_of(self, rank: int, operation: str) -> Exception | None:
        """Return the exception if a rank or the communicator has failed, else None."""
        loss = self.loss
        if loss is None or not (rank in loss.ranks or loss.note is not None):
            return None
        return loss.exception(operation)

    def check_peer(self, operation: str, rank: int) -> None:
        """Raise the failure of a rank or of the communicator, if any."""
        error = None if self.loss is None else self.failure_of(rank, operation)
        if error is not None:
            raise noted(error)

    def check_data(self, operation: str, rank: int, clock: int) -> None:
        """Raise if the data of a message never arrived because its sender failed."""
        if (rank, clock) in self.broken:
            self._take_loss()
            self.check_peer(operation, rank)

    def explained(self, error: MPI.Exception, operation: str) -> Exception:
        """Return the exception to raise for an error that MPI returned."""
        return error if self.comm is None else explained(self.comm, error, operation)

    def forget_comm(self) -> None:
        """Release the communicator, which is being freed."""
        if DETECTOR.made is not None:
            DETECTOR.made.forget(self)
        self.comm = None

    # Arguments

    def check_send(self, operation: str, dest: Any, tag: Any) -> tuple[int, int]:
        """Return `dest` and `tag` as integers; raise errors of arguments and of ranks."""
        dest, tag = self._checked(operation, "dest", dest, tag, is_wild=False)
        self.check_peer(operation, dest)
        return dest, tag

    def check_receive(self, operation: str, source: Any, tag: Any) -> tuple[int, int]:
        """Return `source` and `tag` as integers or wildcards; raise errors of arguments."""
        return self._checked(operation, "source", source, tag, is_wild=True)

    def _checked(self, operation: str, name: str, rank: Any, tag: Any, *, is_wild: bool) -> tuple[int, int]:
        self.check()
        if type(rank) is not int or type(tag) is not int:
            rank, tag = integer(rank), integer(tag)
        if not (0 <= rank < self.size or rank == MPI.PROC_NULL or (is_wild and rank == MPI.ANY_SOURCE)):
            others = ", MPI.ANY_SOURCE or MPI.PROC_NULL" if is_wild else ", or MPI.PROC_NULL"
            raise MPIError(MPI.ERR_RANK, f"{operation}: {name} is {rank}; {self._ranks}{others}")
        if not (0 <= tag <= self.highest_tag or (is_wild and tag == MPI.ANY_TAG)):
            others = ", or MPI.ANY_TAG" if is_wild else ""
            raise MPIError(MPI.ERR_TAG, f"{operation}: tag is {tag}; it can be 0 to {self.highest_tag}{others}")
        if tag == self._contact_tag:
            raise MPIError(MPI.ERR_TAG, f"{operation}: tag is {tag}, which this library uses itself; use another one")
        return rank, tag

    def abort(self) -> None:
        """End all waits of this endpoint's kernels."""
        self.watch.array[0] = 1
