"""Let a thread launch nonblocking calls in which ranks have to meet first.

See `team/background.py`. Either all ranks leave a call to their threads, or none does. So the choice depends only on
what is equal on all ranks: the communicator's options and the earlier calls. It must not depend on a thread's progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..arrays.buffers import Buffer
from ..backends import Device
from ..failures import ulfm
from ..memory.layout import MAX_RANKS
from ..recording import layout
from ..system.process import PerProcess
from ..team.background import Apart, Background, Doing, NotYet, alone
from ..team.base import IntraBase
from ..team.state import TOGETHER, State, state_of
from ..team.streams import current_stream, stream_for
from .call import Call, is_ready
from .launched import KernelWork, Launched
from .run import Began, enqueue
from .time_slicing import is_faster_on_host

_HAS_CHANNELS = PerProcess(mpi_bootstrap.has_channels, lasting=True)


def made_alone(comm: IntraBase, make: Callable[..., Call | None], args: Any, options: Any) -> Call | None:
    """Check a nonblocking call's arguments without communication; return the call.

    Return None for host arrays, and if the ranks must meet in this call itself, so that no thread may launch it. Raises
    what `make` raises for wrong arguments.
    """
    state = state_of(comm)
    if not _may_be_later(comm, state):
        return None
    if state.background is not None or state.team is None:
        try:
            return make(alone(comm), *args, **options)
        except NotYet:
            state.settle()
    return None if state.team is None else make(comm, *args, **options)


def _may_be_later(comm: IntraBase, state: State) -> bool:
    """Return whether a thread may launch a communicator's calls; equal on all ranks."""
    if comm.is_inter or comm.size == 1 or comm.size > MAX_RANKS or state.checking or state.sm_free:
        return False
    if state.comm_failure is not None or not _HAS_CHANNELS.get():
        return False
    # If kernels cannot run the call, MPI runs it on host copies. The ranks must decide that before the call returns.
    if state.team is None and comm.staging:
        return False
    if state.topology is not None:
        return state.topology.node_count == 1
    return mpi_bootstrap.is_job_on_one_node() and MPI.UNDEFINED not in ulfm.world_ranks(comm)


def is_for_later(comm: IntraBase, call: Call) -> bool:
    """Return whether a thread has to launch a call of `made_alone`.

    The result is the same on all ranks.
    """
    state = state_of(comm)
    if call.load is not None or _is_capturing(call.buffers, state):
        return False
    if state.team is not None and state.team.is_time_sliced and is_faster_on_host(comm, call):
        return False
    return state.background is not None or state.team is None or not is_ready(state.team, call)


def _is_capturing(buffers: Collection[Buffer], state: State) -> bool:
    device = backends.select()
    return device.is_capturing(current_stream(device, buffers, state))


class Later(KernelWork):
    """The work of a call that a thread launches; keeps its arrays until `finish`."""

    def __init__(self, comm: IntraBase, state: State, call: Call, device: Device) -> None:
        super().__init__(state)
        self._call: Call | None = call
        self._launched: Launched | None = None
        self._is_dropped = False
        current = stream_for(device, call.buffers, state)
        event = device.event()
        event.record(current)
        self._began = Began(current, event)
        calls = state.calls(comm)
        self._begun = None if calls is None else calls.begin(call.operation, flags=layout.ASIDE)
        self._doing: Doing | None = None

    def begin(self, apart: Apart, background: Background) -> None:
        """Let the thread launch the call after all earlier ones."""
        self._doing = background.do(lambda: self._launch(apart.comm))

    def _launch(self, comm: IntraBase) -> None:
        """Launch the call, in the thread; meet the other ranks if it is necessary."""
        call, self._call = self._call, None
        if call is None:
            return
        enqueued = enqueue(comm, self._state, call, begun=self._begun, aside=True, began=self._began)
        self._launched = Launched(self._state, enqueued, call.buffers)
        if self._is_dropped:
            self._launched.drop()

    def finish(self) -> None:
        """Wait until the call is launched; then finish it as `Launched.finish` does."""
        try:
            self.active = False
            assert self._doing is not None
            if not self._doing.done():
                with self._state.waiting(cast(MPI.Comm, self._state.comm), "the other ranks", TOGETHER):
                    self._doing.wait()
            self._doing.result()
            assert self._launched is not None
            self._launched.finish()
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        self._is_dropped = True
        if self._launched is not None:
            self._launched.drop()

    def is_over(self) -> bool:
        """Return whether the kernel has ended, or the call has raised."""
        assert self._doing is not None
        return self._doing.done() and (self._launched is None or self._launched.is_over())


def launch_later(comm: IntraBase, call: Call) -> Later:
    """Let a thread launch a call, and return its work."""
    state, device = state_of(comm), backends.select()
    with mpi_bootstrap.interrupts_deferred():
        if state.apart is None:
            state.apart = Apart(comm)
        if state.background is None:
            state.background = Background(device)
        later = Later(comm, state, call, device)
        later.begin(state.apart, state.background)
    return later
