"""The end of a communicator over nodes, by `Free` or after a failed call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mpi4py import MPI

from mpi_bootstrap.interrupts import interrupts_allowed
from mpi_bootstrap.own_errors import own_error

from ..errors import Aborted, CollectiveMismatch, PeerTimeout, RankFailed, Revoked, StepTimeout
from ..failures.comm_failures import ABORTED, LATE, REVOKED, TIMED_OUT, WAITED, CommFailure, ended_by, left_by, report
from ..recording.failures import noted
from ..team.background import StepThread
from ..team.team import Team
from .comparison import Comparison
from .failures_elsewhere import RanksElsewhere
from .host_exchange import label_of
from .rails import NodeMap, Rails
from .roll_call import RollCall
from .step_monitor import Watch

# Errors that other ranks raise, too, without a message from this rank.
_ON_ALL = (PeerTimeout, Aborted, CollectiveMismatch, MPI.Exception)


class Endings:
    """The part of a `Spanning` that closes it, or ends it after a failed call.

    Attributes
    ----------
    operation : str
        The operation that was enqueued last.
    number : int
        Number of the last enqueued call, the same on all ranks.
    """

    is_reusable = False

    operation: str
    number: int
    team: Team
    rails: Rails
    places: NodeMap
    comparison: Comparison
    elsewhere: RanksElsewhere
    thread: StepThread
    closed: bool
    _roll: RollCall
    _watch: Watch
    _late: int | None = None  # the late rank of a kernel's timeout, once it is known
    _closing: deque[Callable[[], object]] | None = None  # the steps of `close` that are left

    def close(self) -> None:
        """Release the engines and this node's part. Collective.

        After an exception, the next call continues with the step that has raised. After `abandon`, nothing is left.
        """
        if self._closing is None:
            if self.closed:
                return
            self._closing = deque(self._steps_of_end())
        while self._closing:
            self._closing[0]()
            self._closing.popleft()

    def _steps_of_end(self) -> Iterator[Callable[[], object]]:
        """Return the steps of `close`. Each may run again after an exception."""
        raise NotImplementedError

    def _await_programs(self) -> None:
        # The programs may wait for other ranks, so Ctrl-C ends these waits.
        with interrupts_allowed():
            self.thread.wait()
            self.team.order.synchronize()

    def _failed(self, step: str, reason: Exception) -> None:
        """Report a step's failure to the other ranks of this node, which may wait for it."""
        if not isinstance(reason, _ON_ALL):
            self.leave(step, reason)
        elif self.team.errors.has_failed:
            return
        elif isinstance(reason, StepTimeout):
            self._stop_waiting(step, reason)
        else:
            kind = ABORTED if isinstance(reason, (RankFailed, Revoked, Aborted)) else TIMED_OUT
            self.team.errors.give_up(kind, step)

    def _stop_waiting(self, step: str, reason: StepTimeout) -> None:
        """Notify the ranks of this node, then all others, that this rank stopped waiting."""
        places, late = self.places, reason.peer
        is_here = late >= 0 and places.node_of(late) == places.node
        error = None if late < 0 else reason
        self.team.errors.give_up(TIMED_OUT, step, places.local_of(late) if is_here else -1, error)
        if self.elsewhere.comm_failure is None:
            self._roll.stop(late)

    def _stopped_by(self, rank: int, late: int) -> None:
        """End this rank's waits after another rank has stopped waiting for a late one.

        The late rank's next call raises, so this rank would wait until its own timeout.
        """
        if self.elsewhere.comm_failure is not None or self.rails.has_failed:
            return
        if late == self.places.rank:
            failure = ended_by(late, LATE, self.operation)
        elif late < 0:
            failure = ended_by(rank, WAITED, self.operation)
        else:
            failure = CommFailure(error=StepTimeout(self.operation, self.places.rank, (late,)))
        self.elsewhere.fail(failure)

    @contextmanager
    def entering(self, operation: str) -> Iterator[None]:
        """End the communicator if Ctrl-C interrupts a call in the block."""
        try:
            yield
        except BaseException as error:
            self.left_by(operation, error)
            raise

    def left_by(self, operation: str, error: BaseException) -> None:
        """End the communicator if a signal handler's exception (Ctrl-C) ended a call."""
        if own_error(error) is None:
            self.leave(operation, error)

    def refuse(self, operation: str, error: Exception) -> None:
        """Add to the comparison that this rank has refused a call by raising an error.

        The call itself has been compared before. If all ranks have refused the call, the communicator stays usable.
        Otherwise the other ranks find a difference at their next call.
        """
        if not isinstance(error, _ON_ALL):
            self.number += 1
            self.comparison.add(label_of(operation, ("refused", type(error).__name__)))

    def leave(self, operation: str, error: BaseException) -> None:
        """End the communicator on all ranks: this rank alone has left a call by an error.

        Without this, later calls would receive the messages of the call that was left.
        """
        if isinstance(error, _ON_ALL) or self.comparison.has_failed:
            return
        failure = left_by(self.places.rank, operation, error)
        reason = noted(failure.exception())
        assert isinstance(reason, Aborted)
        assert failure.note is not None
        if not self.team.errors.has_failed:
            self.team.errors.give_up(failure.note.kind, operation)
        self.comparison.leave(reason)
        self._abort(operation, reason)

    def _check_kernels(self) -> None:
        """Raise the node's recorded error; a timeout names the late rank on any node."""
        try:
            self.team.errors.check()
        except StepTimeout:
            raise
        except PeerTimeout as error:
            if self._late is None:
                self._late = self._late_behind(error.peer)
            late = self._late
            raise PeerTimeout(error.operation, error.epoch, error.rank, late, error.expected, error.seen) from None

    def _late_behind(self, peer: int) -> int:
        """Return a rank that has not begun the last call: `peer` if possible."""
        late = self._watch.absent(self.number, (peer,))
        return peer if peer in late else late[0]

    def _differ(self, step: str, reason: Exception) -> None:
        """End the waits for ranks that have made other calls."""
        self._abort(step, reason)
        self._failed(step, reason)

    def _abort(self, step: str, reason: Exception) -> None:
        for engine in list(self.rails.engines()):
            engine.abort(step, reason)

    def _comm_failed(self, failure: CommFailure) -> None:
        """End the waits for ranks that have failed; called in the detector's thread."""
        reason = failure.exception(self.operation)
        report(reason)
        self._abort(self.operation, reason)
        if not self.team.errors.has_failed:
            self.team.errors.give_up(REVOKED if failure.is_revoked else ABORTED, self.operation)


def renamed(ranks: Sequence[int], error: Exception, failure: CommFailure | None) -> Exception:
    """Return an error of a node's kernels with ranks of the communicator over nodes.

    `ranks` are the node's ranks in that communicator. `failure` is the failure that the error reports, if it is not an
    error of this rank's own kernels.
    """

    def rank_of(local: int) -> int:
        return ranks[local] if local >= 0 else -1  # -1 means any rank

    if isinstance(error, RankFailed):
        failed = tuple(map(rank_of, error.ranks))
        return RankFailed(failed, error.world_ranks, error.reason, error.host, error.operation, error.epoch)
    if type(error) is PeerTimeout:
        rank, peer = rank_of(error.rank), rank_of(error.peer)
        return PeerTimeout(error.operation, error.epoch, rank, peer, error.expected, error.seen)
    if isinstance(error, Aborted) and failure is not None and failure.note is not None:
        return replace(failure, note=failure.note._replace(rank=rank_of(failure.note.rank))).exception()
    return error
