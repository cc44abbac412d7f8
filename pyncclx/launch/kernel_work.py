"""What the requests of collectives wait for: the end of a kernel beside the program's streams."""

from __future__ import annotations

from typing import Any

from ..backends import Event
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from ..requests.work import Work
from ..team.state import State
from ..team.team import Team


class KernelWork(Work):
    """Base of the operations that requests of collectives stand for."""

    def __init__(self, state: State) -> None:
        self._state = self._owner = state  # the owner has the Team
        self._hold = state.hold()
        self._began_on: Any = None  # the stream that was current

    def _wait(self, team: Team, event: Event, stream: Any, arrays: Any) -> None:
        """Make a stream wait for a kernel, and the host if the communicator blocks; raise what kernels recorded.

        The stream on which the operation began waits too: from now on its memory pool may use the arrays' memory again.
        If the program has named the stream, arrays may be another stream's: they are kept until the kernel has ended.
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
        if self._owner.team is team:  # a communicator that has been freed has drained, and has no record
            team.errors.check()
