"""State of a communicator over several nodes: its node, rails, cached programs."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_errors_suppressed

from ..errors import Aborted, PeerTimeout, RankFailed, RanksMissing, Revoked
from ..failures.detector import DETECTOR
from ..failures.error_record import ErrorRecord
from ..system.process import BoundedCache
from ..team.attachment import Attachment
from ..team.background import StepThread
from ..team.base import IntraBase
from ..team.kept import Scratch
from ..team.members import most_ranks_per_device
from ..team.state import state_of
from ..team.team import Team
from .comparison import Comparison
from .endings import Endings, renamed
from .engine import EngineError
from .failures_elsewhere import FailureWords, RanksElsewhere
from .host_exchange import MOST_RANKS, HostExchange, host_waits, most_nbytes
from .mpi_engine import keep_left
from .program import Program
from .rails import NodeMap, Rails
from .roll_call import RollCall
from .step_monitor import STEP_MONITOR, Watch

NAME = "nodes"  # name of the attachment


class Spanning(Endings, Attachment):
    """A communicator over several nodes on this rank. Creation is collective.

    Attributes
    ----------
    places, rails, failure_words, elsewhere, comparison, thread
        Parts, each with a class of its own.
    local : Intracomm
        Communicator of this node's ranks, with a Team of its own.
    refusals : ErrorRecord
        Error record for numbers on the device that steps refuse. Its ranks are those of the whole communicator.
    has_threads : bool
        Whether any thread may call MPI.
    host_waits : bool
        Whether calls over nodes block the host; the same on all ranks.
    closed : bool
        Whether the communicator has been freed.
    programs : dict
        Cached programs, by the keys of the calls' arguments.
    composed : dict
        Under PYNCCLX_CHECK=1: the value of `Team.generation` when a call was composed, by the call's label.
    scratch : Scratch
        Scratch memory for one program; all programs use it, because they run one after the other.
    """

    def __init__(self, comm: IntraBase, topology: mpi_bootstrap.Topology) -> None:
        self.places = NodeMap(topology.nodes, topology.rank)
        self.local: IntraBase = mpi_bootstrap.part(comm, self.places.ranks_of(self.places.node))
        self.closed = False
        self._local_state = state_of(self.local)
        self.operation = ""  # set before `elsewhere`: the detector's thread reads it
        try:
            self._make(cast(MPI.Intracomm, comm), state_of(comm).blocking)
        except (RankFailed, Revoked, RanksMissing, Aborted):  # a rank will never take part
            self._local_state.abandon()
            raise
        except BaseException:
            self.local.Free()
            raise
        self.number = 0
        self.has_threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._host_exchange: HostExchange | None = None
        self.comparison = Comparison(
            *(topology.rank, self.places.size, self._comm_of_engine, self._differ),
            look_soon=lambda look: STEP_MONITOR.get().look_once(self.team.device, look),
        )
        self._local_state.look = self.comparison.check
        self.programs: BoundedCache[Hashable, Program] = BoundedCache()
        self.composed: BoundedCache[bytes, int] = BoundedCache()
        self._generation = self.team.generation
        self.scratch = Scratch(self.team.device)
        self.thread = StepThread(self.team.device)
        # Second streams of programs, by whether they are captured. Another stream of the host device is a thread.
        is_threaded = self.has_threads or self.team.device.name != "host"
        self._asides: dict[bool, Any] = defaultdict(self.team.device.new_stream if is_threaded else lambda: None)
        self._roll = RollCall(topology.rank, self.places.size, lambda: self.comparison.comm, lambda: self.number)
        self._watch = Watch(self.team.device, topology.rank, self.comparison.check_aside)
        if self._roll.is_open:
            self._roll.stopped_by = self._stopped_by
            self._watch.call_roll(self._roll)

    def _make(self, comm: MPI.Intracomm, blocking: str) -> None:
        """Make the parts that can fail, on all ranks of all nodes or on none."""
        self.team: Team = mpi_bootstrap.agree(comm, lambda: self.local.team)
        self.team.errors.renamed = functools.partial(renamed, self.places.ranks_of(self.places.node))
        shares_gpu = most_ranks_per_device(self.team.members) > 1
        self.rails = Rails(comm, self.places, self.team.device, self._failed, shares_gpu=shares_gpu)
        self.host_waits = host_waits(comm, blocking, uses_nccl=self.rails.uses_nccl)
        mpi_bootstrap.agree(comm, lambda: self._make_own(comm), undo=lambda _: self._close_own())

    def _make_own(self, comm: MPI.Intracomm) -> None:
        """Make the parts that this rank makes alone."""
        self.failure_words = FailureWords(self.team.device, self.team.errors.address, self.places)
        self.refusals = ErrorRecord(self.team.device, comm.rank)
        try:
            self.elsewhere = RanksElsewhere(comm, self._comm_failed, self.team.order.is_busy)
        except BaseException:
            self.refusals.close()
            raise

    def _close_own(self) -> None:
        self.refusals.close()
        self.elsewhere.close()

    def _comm_of_engine(self) -> MPI.Intracomm:
        """Return the communicator of MPI's engine, whose waits compare calls. Collective."""
        engine = self.rails.mpi()
        engine.look, engine.absent = self.comparison.check, self._watch.absent
        return engine.comm

    def is_short(self, nbytes: int) -> bool:
        """Return whether messages of `nbytes` bytes go through the host exchange.

        The result is the same on all ranks. With NCCL it is false if a rank's calls must be stream ordered.
        """
        return self.host_waits and self.places.size <= MOST_RANKS and nbytes <= most_nbytes(self.places.size)

    @property
    def host_exchange(self) -> HostExchange:
        """The host exchange. Collective at the first use."""
        if self._host_exchange is None:
            errors, device = self.team.errors, self.team.device
            self._host_exchange = HostExchange(self.rails.mpi(), self.places, device, errors, self.failure_words)
        return self._host_exchange

    def enter_graph(self, program: Program) -> None:
        """Stop comparing calls, because a graph will contain this program.

        Raises NotSupported if no graph can contain it. Collective at the first call, like `Comparison.stop`.
        """
        program.check_graph()
        self.comparison.stop()

    def cached(self, key: Hashable) -> Program | None:
        """Return the cached program of an equal call, if no window has changed since."""
        if self._generation != self.team.generation:
            self._generation = self.team.generation
            self.programs.clear()
        return self.programs.get(key)

    def enqueue(self, program: Program, stream: Any, *, capturing: bool) -> None:
        """Enqueue a program on a stream, which is being captured if `capturing` is true."""
        self.operation = program.operation
        self.number += 1
        aside = self._asides[capturing] if program.forks else None
        awaited = None if capturing or not program.is_watched else self._watch.begin(program, self.number)
        try:
            program.enqueue(self.team, stream, aside, self.number)
        except EngineError:
            self.check()  # raises RankFailed if a dead rank is the reason and is found soon
            raise
        except BaseException as error:
            self.leave(program.operation, error)
            raise
        finally:
            if awaited is not None:
                self._watch.end(awaited, stream)

    def look(self) -> None:
        """Call `check` if a flag shows an error; `check` costs a tenth of a short call."""
        errors = self.team.errors.is_clear and self.refusals.is_clear
        steps = self.elsewhere.comm_failure is None and self.failure_words.is_clear and not self.rails.has_failed
        if not (errors and steps and self.comparison.is_clear):
            self.check()

    def check(self) -> None:
        """Raise the error of an earlier call, if one of its steps has failed.

        Raises
        ------
        RankFailed, PeerTimeout, Aborted, MPI.Exception
            If the communicator has failed. Every later check raises it again. Free the communicator.
        CapacityExceeded, ValueError
            If a step refused numbers on the device. Raised once; the communicator stays usable.
        """
        try:
            with self.comparison.explaining():
                self._check()
        except (PeerTimeout, Aborted, EngineError):
            failure = self.elsewhere.wait()  # the failure of a rank may be the reason
            if failure is None:
                raise
            raise failure.exception(self.operation) from None

    def _check(self) -> None:
        if self.elsewhere.comm_failure is not None:
            raise self.elsewhere.comm_failure.exception(self.operation)
        self.comparison.check()
        self.rails.check()
        self.failure_words.check()
        self.refusals.check()
        self._check_kernels()

    @property
    def has_failed(self) -> bool:
        """Whether every call raises from now on."""
        return self.team.errors.has_failed

    def wait(self) -> None:
        """Wait on the host for the results of all programs."""
        self.team.order.synchronize()
        self.look()

    def drain(self) -> None:
        """Wait until all programs have ended, compare all calls, and raise errors."""
        self.thread.wait()
        self.team.order.synchronize()
        if not self.has_failed:
            self.comparison.check_all()
        self.check()

    def _steps_of_end(self) -> Iterator[Callable[[], object]]:
        if self.has_failed:
            yield self._leave_engines
        else:
            yield from (self._await_programs, self.comparison.close, self._release, self.scratch.close)
            if self._host_exchange is not None:
                yield self._host_exchange.close
            yield from (self.rails.close, self._asides.clear)
        yield self.local.Free  # its ranks meet here, even if only some of them have failed

    def abandon(self) -> None:
        """Release what this rank can release without the others."""
        if not self.closed:
            self._leave_engines()
            self._local_state.abandon()

    def _leave_engines(self) -> None:
        """Release this rank's part of the engines."""
        self._release()
        with own_errors_suppressed():  # errors of steps in the host device's threads, which calls raise
            self.team.order.finish()
        for stream in self._asides.values():
            with own_errors_suppressed():
                self.team.device.synchronize(stream)
        if self._host_exchange is not None:
            self._host_exchange.abandon()
        self.rails.abandon()
        keep_left(self.scratch)

    def abandon_device(self, failed: Collection[int]) -> bool:
        """Release the device side; wait until failed ranks no longer write to this rank."""
        members, worlds = self.team.members, self.team.errors.world_ranks
        self.abandon()
        detector = DETECTOR.made
        if detector is not None:
            detector.await_end({members[local].uid for local, world in enumerate(worlds) if world in failed})
        return True

    def _release(self) -> None:
        """Release what this rank alone uses, once."""
        if self.closed:
            return
        self.thread.wait()
        self._roll.close()
        self.comparison.end()
        self.closed = True
        self._local_state.look = None
        self._close_own()
        self.programs.clear()


def spanning_of(comm: IntraBase) -> Spanning | None:
    """Return the state of a communicator over several nodes; None if it has none yet."""
    spanning: Any = state_of(comm).attachments.get(NAME)
    return spanning  # type: ignore[no-any-return]


@mpi_bootstrap.interrupts_deferred()
def span(comm: IntraBase, topology: mpi_bootstrap.Topology) -> Spanning:
    """Make the state of a communicator over several nodes. Collective."""
    spanning = state_of(comm).attachments[NAME] = Spanning(comm, topology)
    return spanning
