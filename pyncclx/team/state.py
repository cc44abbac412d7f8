"""State of a communicator: options, the Team once it is made, and attachments."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Protocol, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap

from ..errors import MPIError, NotSupported
from ..failures.comm_failures import CommFailure
from ..failures.error_record import ErrorRecord, failing_if_interrupted
from ..failures.policy import POLICY
from ..recording.calls import Calls, calls_of
from ..recording.facts import Identity, identity_of, records_calls
from ..system import settings
from ..system.process import PerProcess
from .attachment import Attachment
from .background import Apart, Background
from .kept import Scratch
from .team import Team

BLOCKING = ("stream", "host")
TOGETHER = "before something is made together"


class Carrier(Protocol):
    """A communicator that carries a state."""

    _state: State | None
    _hold: Hold | None

    def Get_attr(self, keyval: int, /) -> Any:
        """Return an attribute (mpi4py's method)."""

    def Set_attr(self, keyval: int, attrval: Any, /) -> None:
        """Set an attribute (mpi4py's method)."""


_Made = TypeVar("_Made", bound=Carrier)


class Hold:
    """A reference held by objects and requests that can still call a communicator."""

    __slots__ = ("__weakref__",)


class State:
    """The state shared by all objects with a communicator's handle (an MPI attribute)."""

    def __init__(self, parent: State | None = None, identity: Identity | None = None) -> None:
        self.blocking: str = parent.blocking if parent else settings.BLOCKING.get()
        self.staging: bool | None = parent.staging if parent else None
        self.stream: Any = parent.stream if parent else None  # set by the user
        self.sm_free: bool = parent.sm_free if parent else False
        self.deterministic: bool = parent.deterministic if parent else True
        self.ordered_starts: bool = parent.ordered_starts if parent else False
        self.checking = settings.CHECK.get()
        self.team: Team | None = None
        self.refusal: NotSupported | None = None
        self.comm_failure: CommFailure | None = None  # why the ranks cannot meet again
        self.topology: mpi_bootstrap.Topology | None = None  # None until a call needs it
        self.apart: Apart | None = None  # the channel of the thread that makes nonblocking calls
        self.background: Background | None = None  # calls that this thread still has to make
        self.first_calls: Callable[..., bool] | None = None  # see `launch_as_nonblocking`
        self.scratch: Scratch | None = None
        self.look: Callable[[], None] | None = None  # called in waits for other ranks; raises to end them
        POLICY.get()
        self.current = True  # False once MPI has deleted the state with its communicator
        self.comm: MPI.Comm | None = None  # mpi4py's object of the communicator
        self.attachments: dict[str, Attachment] = {}  # keys: names of their packages
        self.maker: int | None = None  # the thread that made the Team
        self.made_here = False  # made by pyncclx: mpi4py has no object for it
        self.has_duplicate = False  # whether mpi4py has its duplicate for reductions of objects
        self._hold: Callable[[], Hold | None] = lambda: None  # weak reference to the `Hold`
        self.identity = identity  # None: no calls are recorded
        self._calls: Calls | None = None

    def take_options(self, other: State) -> None:
        """Copy the options that the program has set on another state."""
        self.blocking, self.staging, self.stream = other.blocking, other.staging, other.stream
        self.sm_free, self.deterministic = other.sm_free, other.deterministic

    @property
    def teams(self) -> list[Team]:
        """All Teams whose kernels may run for this communicator."""
        own = [] if self.team is None else [self.team]
        return own + [team for attachment in list(self.attachments.values()) for team in attachment.teams]

    def hold(self) -> Hold:
        """Return a `Hold`; while it lives, the communicator does not count as dropped."""
        hold = self._hold()
        if hold is None:
            hold = Hold()
            self._hold = weakref.ref(hold)
        return hold

    @property
    def is_dropped(self) -> bool:
        """Whether pyncclx made the communicator and no object can call it any more."""
        return self.made_here and self._hold() is None

    def calls(self, comm: MPI.Comm) -> Calls | None:
        """Return the recorder of the communicator's calls; None if none are recorded."""
        if self._calls is None and self.identity is not None:
            self._calls = calls_of(self.identity, comm.Get_name(), comm.rank)
        return self._calls

    def recorded(self, comm: MPI.Comm, operation: str) -> AbstractContextManager[object]:
        """Record the `with` block as a collective call with a rendezvous on the host."""
        calls = self.calls(comm)
        return nullcontext() if calls is None else calls.meeting(operation)

    def waiting(self, comm: MPI.Comm, what: str, detail: str = "") -> AbstractContextManager[object]:
        """Publish that the program waits while the `with` block runs.

        If `comm` has a channel of its own, do nothing.
        """
        calls = None if getattr(comm, "channel", None) is not None else self.calls(comm)
        return nullcontext() if calls is None else calls.waiting(what, detail)

    def settle(self) -> None:
        """Wait until a thread has made this communicator's earlier calls."""
        if self.background is not None:
            with self.waiting(cast(MPI.Comm, self.comm), "the other ranks", TOGETHER):
                self.background.wait()
            self.background = None
            if self.team is not None:
                # An attachment may have been added while the thread joined the others.
                for attachment in list(self.attachments.values()):
                    attachment.join(self.team)

    def meet(
        self, comm: MPI.Intracomm, seconds: float | None = None, call: str = "", of_part: ErrorRecord | None = None
    ) -> None:
        """Wait until all ranks have called this, before a joint step. Collective.

        Raises
        ------
        CollectiveMismatch
            If ranks have not called this in three quarters of the time because they are in a kernel of another call.
        RanksMissing
            If ranks have not called this within PYNCCLX_TIMEOUT, or `seconds`.
        RankFailed, Revoked, PeerTimeout, Aborted
            If ranks cannot call this any more, or the communicator has failed.
        """
        if getattr(comm, "channel", None) is None:
            self.settle()
        patience = settings.TIMEOUT.get() if seconds is None else seconds
        errors = self.team.errors if self.team is not None and not self.team.errors.has_failed else None
        check = functools.partial(errors.check_for_call, call) if errors is not None else None
        watched = of_part or errors

        def look() -> None:
            if self.look is not None:
                self.look()
            if watched is not None and watched.has_failed:
                raise watched.failure()

        with self.waiting(comm, "the other ranks", TOGETHER), failing_if_interrupted(watched, call):
            missing = mpi_bootstrap.missing_ranks(comm, patience, check, look)
        if missing:
            raise POLICY.get().late(comm, missing)

    def drain(self) -> None:
        """Wait on the host for launches of collectives only; raise what kernels recorded."""
        for attachment in [each for each in list(self.attachments.values()) if not each.is_of_messages]:
            attachment.drain()
        if self.team is not None and not self.team.order.is_unused:
            self.team.drain()

    def close(self) -> None:
        """Release the device side. Call it after the ranks have met behind their kernels."""
        apart, self.apart = self.apart, None
        if apart is not None:
            apart.close()
        self._end(Team.close, lambda attachment: attachment.close())
        self._remove_attachments()

    def _remove_attachments(self) -> None:
        # The communicator may be used again: after `free` of MPI.COMM_WORLD, or in a callback of MPI's `Free`.
        for name, attachment in list(self.attachments.items()):
            if not attachment.is_reusable:
                del self.attachments[name]

    def leave(self) -> None:
        """Release the device side; keep memory that other ranks use until they leave."""
        apart, self.apart = self.apart, None
        if apart is not None:
            apart.close()
        reading = [each.reading() for each in list(self.attachments.values())]
        self._end(
            lambda team: team.abandon_after(lambda: not (len(team.windows) and any(each() for each in reading))),
            lambda each: each.close() if each.is_of_messages else each.abandon(),
        )
        self._remove_attachments()

    def abandon(self) -> None:
        """Release what no other rank uses; keep the rest until all ranks have left."""
        if self.apart is not None:
            self.apart.end()
        self._end(Team.abandon, lambda attachment: attachment.abandon())

    def abandon_device(self, failed: Collection[int]) -> None:
        """Abandon the device side; messages between living ranks continue.

        Parameters
        ----------
        failed : collection of int
            The ranks of MPI.COMM_WORLD that have failed.
        """
        team, self.team = self.team, None
        if team is not None:
            team.abandon()
        for name, attachment in list(self.attachments.items()):
            if attachment.abandon_device(failed):
                del self.attachments[name]

    def _end(self, end: Callable[[Team], None], end_attachment: Callable[[Attachment], None]) -> None:
        team, calls, self.team, self._calls = self.team, self._calls, None, None
        with ExitStack() as rest:  # releases every attachment, even if one raises
            if calls is not None:
                rest.callback(calls.close)
            for attachment in reversed(list(self.attachments.values())):
                rest.callback(end_attachment, attachment)
            if self.scratch is not None:
                rest.callback(self.scratch.close)
            if team is not None:
                end(team)


class _Attribute:
    """The value of the MPI attribute; MPI drops it when it deletes the communicator.

    A callback for deletion would be simpler, but fails with MPICH. Before a callback, mpi4py asks MPI for the
    communicator's topology, which MPICH looks for among attributes that it has just freed.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    def __del__(self) -> None:
        self.state.current = False
        self.state.abandon()  # nothing is left after `Free` of pyncclx


def _copy(comm: MPI.Comm, keyval: int, attribute: _Attribute) -> _Attribute:
    # Open MPI copies attributes also in Create_group and Shrink, so the copy is numbered at its first use.
    return _Attribute(State(attribute.state))


# Made at the first use: a keyval needs an initialised MPI, and an import must not do anything.
_KEYVAL = PerProcess(lambda: MPI.Comm.Create_keyval(_copy), lasting=True)


def state_of(comm: Carrier, parent: Carrier | None = None) -> State:
    """Return the state of a communicator; make it at the first use.

    A new state has the options of `parent`. MPI copies the state to duplicates. The object `comm` keeps the state,
    because the look-up in MPI takes 1 µs.
    """
    state = comm._state
    if state is not None:
        if not state.current:
            raise MPIError(MPI.ERR_COMM, "the communicator has been freed")
        return state
    attribute = cast("_Attribute | None", comm.Get_attr(keyval := _KEYVAL.get()))
    if attribute is None:
        attribute = _Attribute(State(None if parent is None else state_of(parent)))
        comm.Set_attr(keyval, attribute)
    state = comm._state = attribute.state
    if state.identity is None and records_calls():
        state.identity = identity_of(cast(MPI.Comm, comm))
    comm._hold, state.comm = state.hold(), MPI.Comm(cast(MPI.Comm, comm))
    return state


def numbered(comm: _Made) -> _Made:
    """Make a communicator's state, in the same order on all ranks (see `Identity`)."""
    if comm != MPI.COMM_NULL and MPI.Is_initialized():
        with suppress(ValueError):  # the first call raises the error of an invalid setting
            state_of(comm)
    return comm


#: Whether MPI may work on host copies where `comm.staging` has not been set. The import of `pyncclx.MPI` sets it.
STAGES_BY_DEFAULT = PerProcess(lambda: False)
