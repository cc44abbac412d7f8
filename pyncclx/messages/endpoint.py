"""A communicator's endpoint for messages: checks, launches and kernels' errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import Topology

from ..arrays.vectors import integer
from ..backends import Device, Function
from ..errors import Aborted, MPIError, PeerTimeout, out_of_range
from ..failures import kernel_errors, ulfm
from ..failures.comm_failures import CommFailure, Monitored, ended_by
from ..failures.detector import DETECTOR
from ..failures.policy import explained
from ..recording.calls import Calls
from ..recording.failures import noted
from ..requests import late
from ..requests.open_receives import LOCK, OPEN_RECEIVES
from ..system import settings
from ..system.process import BoundedCache
from ..team.kept import UsedStreams
from ..team.launch_order import LaunchOrder
from ..team.streams import ANY_CALLER, Caller
from ..team.team import Team
from .arguments import teams_of
from .context import CONTEXT
from .envelope import Sender
from .memory.headers import Used
from .partitioned.contacts import contact_tag, highest_tag
from .partitioned.handshakes import PartitionedEnds
from .peers import Peers

#: Names of the methods; error records contain their indices.
OPERATIONS = (
    *("Send", "Ssend", "Isend", "Issend", "Recv", "Irecv"),
    *("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace"),
    *("send", "recv"),  # all methods for objects
    *("Send_init", "Ssend_init", "Rsend_init", "Recv_init", "Startall", "Psend_init", "Precv_init"),
)
_serials = itertools.count(1)


class Endpoint(Monitored):
    """One communicator's state for messages in this process.

    It lasts until its communicator has been freed and its last message is complete, which may be later. Kernels get a
    `Team` of one rank, of which they use only the error record and the timeout.

    Attributes
    ----------
    device : Device
    context : MessageContext
        The message context that all communicators of the process share.
    rank, size : int
        This process's rank, and the number of ranks to send to; in an intercommunicator, those of the remote group.
    team : Team or None
        The communicator's team, once it has one; messages use its windows.
    caller : Caller
        The communicator's stream, and whether its calls block.
    watch : Watch
        Error record.
    teams : dict of str to bytes
        For each operation, the packed `Team` that begins its kernels' parameter.
    partitioned : PartitionedEnds
    calls : Calls or None
        Records messages, in `ring`.
    timeout_s : float
        PYNCCLX_TIMEOUT when the endpoint was created.
    failure : Exception or None
        The exception that every call raises after a wait in MPI has timed out.
    peers : Peers
    plans : dict
        Cached plans by the keys of their arguments.
    broken : set of (int, int)
        Rank and clock of messages whose data never arrived.

    The failure detector finds the endpoint's failed ranks through MPI, and by failures in MPI.COMM_WORLD.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        device: Device,
        calls: Calls | None = None,
        topology: Callable[[], Topology | None] = lambda: None,
    ) -> None:
        self.serial = next(_serials)
        self.device, self.context = device, CONTEXT.get()
        self.monitor = self.context.receives.monitor
        self.world_ranks = ulfm.world_ranks(comm)
        self.highest_tag, self._contact_tag = highest_tag(), contact_tag()
        self.rank, self.size = comm.rank, len(self.world_ranks)
        self._ranks = f"the communicator's ranks are 0 to {self.size - 1}"
        self.team: Team | None = None
        self.calls, self.ring = calls, None if calls is None else calls.ring
        self.caller: Caller = ANY_CALLER
        self.watch = device.allocate_watch(kernel_errors.WORDS_NBYTES)
        header = self.context.bounce.headers.take()
        self.timeout_s = settings.TIMEOUT.get()
        self.failure: Exception | None = None
        self.teams = teams_of(OPERATIONS, header=header, watch=self.watch.address, timeout_s=self.timeout_s)
        self.peers = Peers(self.serial, self.context.readers, self.world_ranks, topology)
        self._streams = UsedStreams(device)  # used by all threads since the last `drain`
        self.plans: BoundedCache[Hashable, Any] = BoundedCache()
        # Plans and the bytes from the beginning of the array, by keys without addresses.
        self.movable_plans: BoundedCache[Hashable, tuple[Any, int]] = BoundedCache()
        self.comm = MPI.Intercomm(comm) if isinstance(comm, MPI.Intercomm) else MPI.Comm(comm)
        self.partitioned = PartitionedEnds()
        self.senders: dict[int, Sender] = {}  # rank to sender whose data kernels here have fetched
        self.broken: set[tuple[int, int]] = set()
        if comm.size > 1 or isinstance(comm, MPI.Intercomm):
            DETECTOR.get().watch(self)
        self.context.bounce.headers.take_back_after(self, Used(header, self.watch, self._streams))

    @cached_property
    def order(self) -> LaunchOrder:
        """The order of persistent requests' launches in captures."""
        return LaunchOrder(self.device)

    def launch(self, operation: str, kernel: str, grid: int, threads: int, arguments: bytes, stream: Any) -> None:
        """Launch a kernel of the context on `stream`, with its `Team` and `arguments`."""
        if stream is not self._streams.last and stream is not self._streams.before:
            self._streams.add(stream)
        function, parameters = self.context.functions[kernel], self.teams[operation] + arguments
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
        """Raise an error recorded by a kernel, a send or (once) the monitor thread."""
        if self.monitor.failure is not None:
            self.context.receives.check()
        if late.INTERRUPTED:
            late.raise_kept()
        if self.failure is not None:
            raise noted(self.failure)
        if not self.watch.array[kernel_errors.FAILURE]:
            return
        record = kernel_errors.read_words(self.watch)
        if record.failure == kernel_errors.LOST or (
            self.comm_failure is not None and self.comm_failure.note is not None
        ):
            raise noted(self._take_failure())
        operation = f"{OPERATIONS[record.operation]} with tag {record.channel}"
        if record.failure == kernel_errors.ABORTED:
            raise noted(Aborted(f"{operation}: rank {self.rank} was made to stop waiting for rank {record.peer}"))
        raise noted(PeerTimeout(operation, record.epoch, self.rank, record.peer, record.expected, record.seen))

    # Ranks that fail

    def fail(self, failure: CommFailure) -> None:
        """End the waits of kernels for failed ranks, or all waits after a revocation."""
        before = () if self.comm_failure is None else self.comm_failure.ranks
        if len(failure.ranks) > len(before) or failure.note is not None:
            self.comm_failure = failure
        if failure.note is not None:
            self.abort()
            self.watch.array[kernel_errors.FAILURE] = kernel_errors.LOST
        for rank in set(failure.ranks).difference(before):
            sender, broken = self.senders.get(rank), frozenset[int]()
            bounce = self.context.opened.bounce_address(sender) if sender is not None else None
            if sender is not None and bounce is not None:
                broken = self.context.bounce.release_receives(sender.uid, bounce)
            self.broken.update((rank, clock) for clock in broken)
            self.context.bounce.end_sends(self.peers.numbers[rank])
            if self.partitioned.let_go(rank) or broken:
                self.watch.array[kernel_errors.FAILURE] = kernel_errors.LOST

    @property
    def is_of_messages(self) -> bool:
        """Whether no partitioned message is active, whose kernels wait for peers' calls."""
        return not self.partitioned.are_active()

    def may_launch(self) -> bool:
        """Return whether graphs hold messages of this endpoint."""
        return "order" in vars(self) and self.order.has_graphs

    def has_open_receives(self) -> bool:
        """Return whether receives are posted whose kernels have not been launched."""
        return any(getattr(each, "endpoint", None) is self for each in list(OPEN_RECEIVES))

    def is_busy(self) -> bool:
        """Return whether a kernel runs or is enqueued; captured kernels do not count."""
        streams = {0: None, **self._streams} if self.device.name == "host" else dict(self._streams)
        return any(not self.device.is_idle(stream) for stream in streams.values())

    def give_up(self, kind: str) -> None:
        """End the waits of kernels here. Other ranks raise when they wait for this one."""
        self.fail(ended_by(self.rank, kind, group=self.id))

    def _take_failure(self) -> Exception:
        """Return the exception for lost messages; clear it if other ranks continue."""
        assert self.comm_failure is not None
        if self.comm_failure.note is None:
            self.broken.clear()
            self.watch.array[kernel_errors.FAILURE] = 0
        return self.comm_failure.exception("a message")

    def failure_of(self, rank: int, operation: str) -> Exception | None:
        """Return the exception if a rank or the communicator has failed, else None."""
        failure = self.comm_failure
        if failure is None or not (rank in failure.ranks or failure.note is not None):
            return None
        return failure.exception(operation)

    def check_peer(self, operation: str, rank: int) -> None:
        """Raise the failure of a rank or of the communicator, if any."""
        error = None if self.comm_failure is None else self.failure_of(rank, operation)
        if error is not None:
            raise noted(error)

    def check_data(self, operation: str, rank: int, clock: int) -> None:
        """Raise if the data of a message never arrived because its sender failed."""
        if (rank, clock) in self.broken:
            self._take_failure()
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
        """Return `dest` and `tag` as integers; raise for bad arguments and failed ranks."""
        dest, tag = self._checked(operation, "dest", dest, tag, is_wild=False)
        self.check_peer(operation, dest)
        return dest, tag

    def check_receive(self, operation: str, source: Any, tag: Any) -> tuple[int, int]:
        """Return `source` and `tag` as integers or wildcards; raise for bad arguments."""
        return self._checked(operation, "source", source, tag, is_wild=True)

    def _checked(self, operation: str, name: str, rank: Any, tag: Any, *, is_wild: bool) -> tuple[int, int]:
        self.check()
        if type(rank) is not int or type(tag) is not int:
            rank, tag = integer(rank), integer(tag)
        if not (0 <= rank < self.size or rank == MPI.PROC_NULL or (is_wild and rank == MPI.ANY_SOURCE)):
            others = ", MPI.ANY_SOURCE or MPI.PROC_NULL" if is_wild else ", or MPI.PROC_NULL"
            raise out_of_range(MPI.ERR_RANK, rank, f"{operation}: {name} is {rank}; {self._ranks}{others}")
        if not (0 <= tag <= self.highest_tag or (is_wild and tag == MPI.ANY_TAG)):
            others = ", or MPI.ANY_TAG" if is_wild else ""
            text = f"{operation}: tag is {tag}; it can be 0 to {self.highest_tag}{others}"
            raise out_of_range(MPI.ERR_TAG, tag, text)
        if tag == self._contact_tag:
            raise MPIError(MPI.ERR_TAG, f"{operation}: tag is {tag}, which this library uses itself; use another one")
        return rank, tag

    def abort(self) -> None:
        """End all waits of this endpoint's kernels."""
        self.watch.array[0] = 1
