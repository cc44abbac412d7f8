"""Base of what requests of collectives wait for: a kernel on another stream."""

from __future__ import annotations

from typing import Any

from ..backends import Event
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from ..requests.work import Work
from ..team.kept import End
from ..team.state import State
from ..team.team import Team


def keep(team: Team | None, end: End | None, arrays: Any) -> None:
    """Keep the arrays of a kernel until it has ended, after its request has gone."""
    if team is not None and end is not None:
        team.order.keep(end, arrays)


class KernelWork(Work):
    """Base of the works of collectives' requests."""

    def __init__(self, state: State) -> None:
        self._state = self._owner = state  # the owner has the Team
        self._hold = state.hold()
        self._began_on: Any = None  # the stream that was current at the start

    def _wait(self, team: Team, event: Event, stream: Any, arrays: Any) -> None:
        """Make a stream wait for a kernel; raise what kernels recorded.

        The host waits too if the communicator blocks. So does the stream on which the operation began, because its
        memory pool may reuse the arrays' memory from now on. If the program has set the communicator's `stream`, the
        arrays may belong to another one, so they are kept until the kernel has ended.
        """
        if OPEN_RECEIVES:
            let_receives_leave()
        event.order(stream)
        if self._began_on is not None and self._began_on != stream:
            event.order(self._began_on)
        if self._state.blocking == "host":
            event.synchronize()
        elif self._state.stream is not None:
            team.order.kept.keep(event, arrays)
        # A freed communicator has drained its work, and has no error record.
        if self._owner.team is team:
            team.errors.check()
