"""What the request of a nonblocking collective stands for: a kernel that has been launched."""

from __future__ import annotations

from ..backends import Event
from ..team.base import IntraBase
from ..team.compare import Comparison
from ..team.streams import current_stream
from ..team.team import Team
from .call import Call
from .kernel_work import KernelWork
from .plan import is_planned
from .run import enqueue


class Launched(KernelWork):
    """A call whose kernel has been launched; it keeps the arrays until the end of the kernel is waited for."""

    def __init__(self, comm: IntraBase, call: Call) -> None:
        super().__init__(comm)
        self._comparison = self._begin_comparison(comm, call) if self._state.checking else None
        launched = enqueue(comm, self._state, call, aside=True)
        self._began_on = launched.current
        self._team: Team | None = launched.team
        self._event: Event | None = launched.team.order.mark(launched.stream)
        self._buffers = call.buffers

    def _begin_comparison(self, comm: IntraBase, call: Call) -> Comparison | None:
        """Let the other ranks have the call for comparison; wait for theirs only if there is a kernel to prepare."""
        comparison, team = Comparison(comm, call.operation, call.signature), self._state.team
        if team is not None and is_planned(team, call):
            return comparison
        comparison.finish()
        return None

    def finish(self) -> None:
        """Make the current stream wait, and the host if the communicator blocks; raise what kernels recorded."""
        comparison, self._comparison = self._comparison, None
        if comparison is not None:
            comparison.finish()
        team, event, buffers = self._team, self._event, self._buffers
        self._team, self._event, self._buffers = None, None, ()
        if team is not None and event is not None:
            self._wait(team, event, current_stream(team.device, buffers, self._state))

    def is_over(self) -> bool:
        """Return whether the kernel has ended."""
        return self._event is None or self._event.is_over()
