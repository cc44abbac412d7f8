"""Dispatch one-sided operations: to device memory mapped here, or to MPI."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from .. import events
from ..arrays import places
from ..errors import NotSupported
from ..recording.calls import Calls, calls_of
from ..recording.facts import identity_of_window, place, records_calls
from ..recording.layout import ACCESS, ANY
from ..requests.request import request_of
from ..requests.work import Work
from ..staging.arguments import Argument, GivenCall
from ..staging.copies import PublicCopy
from ..staging.stage import ACCESSES, Origins
from ..system.mpi_library import is_cuda_aware
from ..team.state import STAGES_BY_DEFAULT, State
from .atomics import OF_ONE_ELEMENT
from .exposed import Exposed
from .reach import Reach
from .state import Stateful

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Accesses(Stateful):
    """Base class of the mixins of `pyncclx.Win`: memory, host copies, recorded calls."""

    def _calls(self) -> Calls | None:
        """Return the recorder of the window's calls; None if calls are not recorded."""
        state = self._state
        if state.recording is None and records_calls():
            identity = identity_of_window(self)
            state.recording = calls_of(identity, self.Get_name(), identity.world.index(place()[0]))
        return state.recording

    def _record(self, operation: str, rank: int, nbytes: int = 0, tag: int = ANY) -> int:
        """Write the entry of a call that is not collective; return its number."""
        calls = self._calls()
        return 0 if calls is None else calls.one(operation, ACCESS, peer=rank, tag=tag, nbytes=nbytes)

    def _reach_now(self) -> Reach:
        """Return the device memory; raise if it was freed, or if an earlier kernel failed."""
        reach = self._state.reach
        assert reach is not None
        team = reach.team
        if not team.windows.by_number:
            reach.check_mapped()
        team.errors.check()
        return reach

    def _exposed(self, operation: str) -> Exposed:
        """Return the memory of a window of device arrays; raise for other windows."""
        reach = self._state.reach
        if not isinstance(reach, Exposed):
            raise self._not_mapped(operation)
        self._reach_now()
        return reach

    def _not_mapped(self, operation: str) -> NotSupported:
        """Return the error for an operation that needs memory mapped by all ranks."""
        if self._node_count() > 1:
            return NotSupported(
                f"{operation}: signals and mapped memory work inside one node, and the window's ranks are on "
                f"{self._node_count()}; Split by node, or Put, Flush and Send a message"
            )
        return NotSupported(f"{operation}: the window was not made of device memory from comm.Alloc; use such arrays")

    def _node_count(self) -> int:
        """Return the number of nodes; 1 if the window's communicator has no topology."""
        caller = self._state.caller
        topology = caller.topology if isinstance(caller, State) else None
        return 1 if topology is None else topology.node_count

    def _may_stage(self, operation: str, found: list[Argument]) -> bool:
        """Return whether to replace a call's device arrays by host copies.

        Raise NotSupported if staging is off and MPI takes no device arrays.
        """
        stages = STAGES_BY_DEFAULT.get() if self._state.staging is None else self._state.staging
        if not stages and is_cuda_aware() is False:
            raise NotSupported(
                f"Win.{operation}: {found[0].name} is on the device, the window's memory is not, and the MPI "
                "library does not take device arrays; pass host arrays, or use `from pyncclx import MPI`"
            )
        return stages

    def _copy_back(self, rank: int | None = None) -> None:
        """Copy results of staged operations with a rank (None: all ranks) to the device."""
        if self._state.origins is not None:
            self._state.origins.copy_back(rank)

    def _give(self, rank: int | None = None) -> None:
        """Update this rank's public copy from its array, if `rank` is this rank or None."""
        for copy in self._copies_now(rank):
            copy.give()

    def _take(self, rank: int | None = None) -> None:
        """Update this rank's array from its public copy, if `rank` is this rank or None."""
        for copy in self._copies_now(rank):
            copy.take()

    def _copies_now(self, rank: int | None) -> tuple[PublicCopy, ...]:
        state = self._state
        return () if not state.copies or rank not in (None, state.comm.rank) else state.copies

    def _hold_own(self, rank: int | None = None) -> None:
        """Make MPI acquire this rank's own lock now, not at the first access."""
        copies = self._copies_now(rank)
        if copies and copies[0].nbytes:
            self._access(self._state.comm.rank, 0)

    def _access(self, rank: int, place: int) -> None:
        """Make MPI acquire a rank's lock now, by an access to a byte of MPI's own window."""
        # MPI may write to the byte until the Flush.
        byte = np.empty(1, "u1")
        MPI.Win.Get(self, [byte, MPI.BYTE], rank, [place, 1, MPI.BYTE])
        MPI.Win.Flush(self, rank)


def on_device(method: _Method) -> _Method:
    """Decorate a method for device memory; for other targets mpi4py's method runs.

    If staging is on, host copies replace device arrays in mpi4py's calls.
    """
    name = method.__name__
    original, in_window = getattr(MPI.Win, name), f"Win.{name}"
    buffers, position = ACCESSES[name]
    rank_argument = Argument("target_rank", position, False)
    target_argument = Argument("target_disp" if name in OF_ONE_ELEMENT else "target", position + 1, False)

    @functools.wraps(method)
    def either(self: Accesses, *args: Any, **kwargs: Any) -> Any:
        began = events.begin(name) if events.listeners else None
        given = GivenCall(in_window, args, kwargs)
        rank, target = given.value(rank_argument), given.value(target_argument)
        self._record(name, rank, getattr(args[0], "nbytes", 0) if args else 0)
        state = self._state
        if state.reach is not None and state.reach.holds(rank, target):
            result, how = method(self, *args, **kwargs), events.NATIVE
        else:
            # For MPI.PROC_NULL, MPI does not access the memory.
            on_host = places.host_arrays() or rank == MPI.PROC_NULL
            found = [] if on_host else given.device_buffers(buffers)
            if found and self._may_stage(name, found):
                if state.origins is None:
                    # Another object of the window may complete the operation.
                    self._keep_state()
                    state.origins = Origins(state.caller)
                return state.origins.stage(given, functools.partial(original, self), found)
            result, how = original(self, *args, **kwargs), events.HOST
        if began is not None:
            events.emit(name, how, events.longest_nbytes([*args, *kwargs.values()]), began, peer=rank)
        return result

    return either  # type: ignore[return-value]


class Enqueued(Work):
    """The work of a one-sided operation's request: a copy or kernel on a stream."""

    def __init__(self, reach: Reach, stream: Any, arrays: Sequence[Any]) -> None:
        team = reach.team
        self._device, self._stream, self._arrays, caller = team.device, stream, arrays, team.caller
        # Keep the arrays until the operation has ended, because the program may use them on another stream.
        if arrays and (caller.stream is not None or caller.blocking == "host"):
            team.order.kept.keep(team.order.mark(stream), arrays)

    def request(self) -> MPI.Request:
        """Return a request that completes when the stream has reached this point."""
        self._event = self._device.event()
        self._event.record(self._stream)
        return request_of(self)

    def finish(self) -> None:
        """Wait for the operation on the host."""
        self.active = False
        self._event.synchronize()
        self._arrays = ()

    def is_over(self) -> bool:
        """Return whether the operation is complete."""
        return self._event.is_over()
