"""What the request of a nonblocking collective stands for: a kernel that was launched."""

from __future__ import annotations

from mpi4py import MPI

from ..requests.open_receives import let_receives_leave
from ..requests.status import fill_empty
from ..team.base import IntraBase
from ..team.state import state_of
from ..team.streams import current_stream
from .call import Call
from .run import enqueue


class Launched:
    """What the request of a collective stands for: the end of its kernel."""

    def __init__(self, comm: IntraBase, call: Call) -> None:
        self._state = state_of(comm)
        team = self._team = enqueue(comm, self._state, call)
        self._event = None if team is None else team.order.mark()
        self._buffers = call.buffers  # keep the arrays

    def finish(self) -> None:
        """Make the current stream wait, and the host if the communicator blocks; raises what kernels recorded."""
        team, event, buffers = self._team, self._event, self._buffers
        self._team, self._event, self._buffers = None, None, ()
        if team is None or event is None:
            return
        let_receives_leave()
        event.order(current_stream(team.device, buffers))
        if self._state.blocking == "host":
            event.synchronize()
        if self._state.team is team:  # a communicator that has been freed has drained, and has no record
            team.errors.check()

    def is_over(self) -> bool:
        """Whether the kernel has ended."""
        return self._event is None or self._event.is_over()

    def fill(self, status: MPI.Status) -> None:
        """There is no message."""
        fill_empty(status)
