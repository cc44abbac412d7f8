"""What a persistent request stands for: a launch with everything decided, to be started again and again."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from ..arrays.readers import address_reader_of
from ..backends import Repeated
from ..errors import MPIError
from ..requests.open_receives import let_receives_leave
from ..requests.status import fill_empty
from ..team.base import IntraBase
from ..team.state import state_of
from ..team.streams import current_stream, stream_for
from .call import Call
from .compare import compare
from .plan import plan_of

_serials = itertools.count()


class Prepared:
    """What a persistent request stands for: a launch that has been made ready. It is active from start to finish."""

    stream: Callable[[], Any]  # the current one

    def __init__(self, comm: IntraBase, call: Call) -> None:
        self.active, self._serial = False, next(_serials)
        self._together: dict[tuple[int, ...], Repeated] = {}  # by the serial numbers of all who start with it
        self.operation, self._state, self._buffers = call.operation, state_of(comm), call.buffers
        self._ready, self._settle = call.ready, call.settle
        readers = filter(None, (address_reader_of(buffer.owner) for buffer in call.buffers))
        self._places = [(read, read()) for read in readers]  # the arrays' addresses, now and then
        if comm.checking:
            compare(comm, call.operation, call.signature)
        self._team = None if call.empty else comm.team
        if self._team is None:
            return
        team, device = self._team, self._team.device
        self._plan = plan_of(comm, team, call)
        _, function, grid, threads, _ = self._plan
        parameters = team.parameters(self._plan, call.buffers, call.arguments)
        self._device, self._event = device, device.event()
        self._launch = device.repeated(function, grid, threads, parameters, self._event)
        stream_for(device, call.buffers)  # producers on other streams are known now, not later
        of_torch = any(buffer.of_torch for buffer in call.buffers)
        self.stream = functools.partial(current_stream, device, call.buffers) if of_torch else device.current_stream

    @property
    def is_only_a_launch(self) -> bool:
        """Whether a start has nothing else to do."""
        return self._team is not None and self._ready is None and self._settle is None

    def check(self) -> None:
        """Raise what forbids a start."""
        if self.active:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}_init: the request has been started; Wait for it first")
        if self._team is None:
            return
        if self._state.team is not self._team:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}_init: the request's communicator has been freed")
        self._team.errors.check()
        for place, first in self._places:
            if place() != first:
                text = "an array has other memory than when the request was made; make a new request"
                raise MPIError(MPI.ERR_BUFFER, f"{self.operation}_init: {text}")

    def start(self) -> None:
        """Launch on the current stream."""
        self.check()
        team = self._team
        if team is not None:
            stream = self.stream()
            if self._ready is not None:
                self._ready(team, stream)
            team.order.repeat(self._launch, stream)
            if self._settle is not None:
                self._settle(team, self._plan, stream)
                self._event.record(stream)
        self.active = True

    def start_with(self, others: Sequence[Prepared], stream: Any) -> None:
        """Launch this one and others after it, by one launch."""
        works = self, *others
        key = tuple(work._serial for work in works)
        if len(set(key)) < len(key):
            raise MPIError(MPI.ERR_REQUEST, "Startall: a request is there twice")
        for work in works:
            work.check()
        if key not in self._together:
            self._together[key] = self._device.together([work._launch for work in works])
        for team in filter(None, (work._team for work in works)):
            team.order.follow(stream)
        self._together[key].launch(stream)
        for work in works:
            work.active = True

    def finish(self) -> None:
        """Make the current stream wait, and the host if the communicator blocks; raises what kernels recorded."""
        active, self.active = self.active, False
        team = self._team
        if not active or team is None:
            return
        let_receives_leave()
        self._event.order(self.stream())
        if self._state.blocking == "host":
            self._event.synchronize()
        if self._state.team is team:  # a communicator that has been freed has drained, and has no record
            team.errors.check()

    def is_over(self) -> bool:
        """Whether the kernel has ended, or none was started."""
        return not self.active or self._team is None or self._event.is_over()

    def fill(self, status: MPI.Status) -> None:
        """There is no message."""
        fill_empty(status)
