"""Comparison of each call between a communicator's ranks (PYNCCLX_CHECK=1).

Each rank sends its call to all others on a communicator for this purpose. A rank waits at most PYNCCLX_TIMEOUT for the
calls of the other ranks.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_error

from ..errors import CollectiveMismatch
from ..failures.policy import POLICY
from ..memory.called import describe
from ..recording.failures import noted
from ..system import settings
from .attachment import Attachment
from .state import Carrier, state_of

_NAME = "comparisons"  # name of the attachment
_Call = tuple[Any, ...]  # operation, and the arguments that must be equal on all ranks


class _Comparisons(Attachment):
    """The calls of a communicator to compare; all ranks number them alike."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.rank, self.size, self.name = comm.rank, comm.size, comm.Get_name()
        self._apart: Any = None  # made at the first call
        self.number = 0  # number of the last call
        self._calls: dict[tuple[int, int], _Call] = {}  # calls of all ranks, by rank and number
        self._given_up: dict[tuple[int, int], _Call] = {}
        self._sent: list[MPI.Request] = []
        _ALL.add(self)

    def announce(self, comm: MPI.Intracomm, call: _Call) -> int:
        """Send a call to all other ranks; return its number."""
        if self._apart is None:
            self._apart = self._make(comm, call)
        self.number += 1
        self._calls[self.rank, self.number] = call
        self._send(call)
        return self.number

    def _make(self, comm: MPI.Intracomm, call: _Call) -> MPI.Intracomm:
        """Make the communicator for calls, once all ranks have called this.

        There are two rendezvous. A rank that arrives at the moment when the others time out may complete the first one.
        In the second one it finds that they have left, so it does not wait in MPI.
        """
        for _ in range(2):
            missing = mpi_bootstrap.missing_ranks(comm, settings.TIMEOUT.get())
            if comm.rank in missing:  # the others have left
                raise POLICY.get().late(comm, missing)
            if missing:
                raise noted(CollectiveMismatch(self._missing(call, "not all others have")))
        return mpi_bootstrap.same_ranks(comm)

    def _send(self, call: _Call | None) -> None:
        """Send the last call, or None to withdraw it."""
        self._sent = [request for request in self._sent if not request.Test()]
        for rank in self._others():
            self._sent.append(self._apart.isend((self.number, call), rank))

    def finish(self, number: int) -> None:
        """Wait for all ranks' calls of this number, and compare them."""
        deadline = time.monotonic() + settings.TIMEOUT.get()
        while not self.have_called(number):
            if time.monotonic() > deadline:
                raise noted(CollectiveMismatch(self._timed_out(number)))
            os.sched_yield()
        calls = [self._calls.pop((rank, number)) for rank in range(self.size)]
        if any(call != calls[0] for call in calls):
            text = "; ".join(f"rank {rank}: {_text(call)}" for rank, call in enumerate(calls))
            raise noted(CollectiveMismatch(f"ranks disagree about the call: {text}"))

    def _timed_out(self, number: int) -> str:
        """Withdraw a call that other ranks have not made in time; return a text about it."""
        if number == self.number:  # the other ranks' next call gets this number
            self._send(None)
            self.number -= 1
        ranks = [rank for rank in self._others() if (rank, number) not in self._calls]
        text = self._missing(self._calls[self.rank, number], "rank " + ", ".join(map(str, ranks)) + " has not")
        return "; ".join([text, *(text for rank in ranks for text in self._elsewhere(rank))])

    def _others(self) -> Iterator[int]:
        return (rank for rank in range(self.size) if rank != self.rank)

    def have_called(self, number: int) -> bool:
        self._collect()
        return all((rank, number) in self._calls for rank in range(self.size))

    def _collect(self) -> None:
        """Receive calls, and set aside those that were withdrawn."""
        for rank in self._others():
            while (message := self._apart.improbe(rank)) is not None:
                number, call = message.recv()
                if call is not None:
                    self._calls[rank, number] = call
                elif (rank, number) in self._calls:  # otherwise its comparison has just ended here
                    self._given_up[rank, number] = self._calls.pop((rank, number))

    def _missing(self, call: _Call, who: str) -> str:
        waited = f"rank {self.rank} called {_text(call)} and waited {settings.TIMEOUT.get():g} s (PYNCCLX_TIMEOUT)"
        return f"ranks disagree about the call: {waited}; {who} called anything on this communicator ({self.name})"

    def _elsewhere(self, rank: int) -> Iterator[str]:
        """Yield texts about a rank's calls on other communicators, not made by this rank."""
        world = self._world_rank(rank)
        for other in _ALL:
            if other is not self and other._apart is not None:
                other._collect()
                for (caller, number), call in {**other._given_up, **other._calls}.items():
                    if other._world_rank(caller) == world and number > other.number:
                        yield f"rank {rank}: {_text(call)} on another communicator ({other.name})"

    def _world_rank(self, rank: int) -> int:
        group, world = self._apart.Get_group(), MPI.COMM_WORLD.Get_group()
        return int(group.Translate_ranks([rank], world)[0])

    def close(self) -> None:
        """Stop comparing. Keep the communicator: a withdrawn call may still arrive on it.

        If it were freed, MPI could deliver such a message to the next communicator with the same number, and Open MPI 5
        aborts.
        """
        _ALL.discard(self)


_ALL: weakref.WeakSet[_Comparisons] = weakref.WeakSet()


class Comparison:
    """The comparison of one call, which is sent to the other ranks at once."""

    def __init__(self, comm: MPI.Comm, operation: str, signature: tuple[Any, ...] = ()) -> None:
        attachments = state_of(cast(Carrier, comm)).attachments
        own = attachments.get(_NAME) or attachments.setdefault(_NAME, _Comparisons(comm))
        self._all = cast(_Comparisons, own)
        self._number = self._all.announce(cast(MPI.Intracomm, comm), (operation, *signature))
        self._comm, self._deadline = comm, time.monotonic() + settings.TIMEOUT.get()

    def is_over(self) -> bool:
        """Return whether `finish` need not wait: other calls have arrived, or are late."""
        return self._all.have_called(self._number) or time.monotonic() > self._deadline

    def finish(self) -> None:
        """Wait for the other ranks' calls.

        Raises
        ------
        CollectiveMismatch
            On all ranks, if their calls differ in operation or arguments. On the ranks that made a call, if another
            rank made none within PYNCCLX_TIMEOUT.
        """
        try:
            self._all.finish(self._number)
        except BaseException as error:
            if own_error(error) is None:  # the others may find the call, and make it
                mpi_bootstrap.leave_interrupted(self._comm)
            raise


def compare(comm: MPI.Comm, operation: str, signature: tuple[Any, ...] = ()) -> None:
    """Compare a call between the ranks before it does anything; see `Comparison`."""
    Comparison(comm, operation, signature).finish()


def _text(call: _Call) -> str:
    operation, *signature = call
    return describe(operation, signature)
