"""What a program's operations were done by: counted call by call, printed over all ranks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..communicator import communicator
from ..messages.endpoint import Endpoint
from ..messages.receive import Incoming
from ..messages.send import Outgoing
from ..requests import persistent
from ..requests.request import Request
from ..staging import stage
from ..staging.operations import OPERATIONS, Argument, argument, is_persistent
from ..staging.persistent import StagedPrequest
from ..staging.requests import Prequest
from ..staging.windows import ACCESSES, Origins
from ..team.team import Team
from ..windows import rma
from ..windows.signals import Signals
from ..windows.win import Win

_Method = Callable[..., Any]
NATIVE, STAGED, HOST = "native", "staged", "host"
_MEANINGS = {
    NATIVE: "device arrays, moved by kernels",
    STAGED: "device arrays, copied to host memory and back, with MPI between; `comm.explain` says what has no kernel",
    HOST: "host arrays, by mpi4py",
}


class Recorder:
    """Counts the buffer operations of all our communicators and windows, from when it is made.

    Of persistent operations each start is a call. What nonblocking and persistent ones do after they have returned is
    not in their time.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[int, int, float]] = {}  # (operation, how): calls, bytes, seconds
        self._how = HOST
        for owner, name, how in (
            *((Team, "launch", NATIVE), (Team, "launch_again", NATIVE)),
            *((Endpoint, "launch", NATIVE), (Signals, "put", NATIVE)),
            *((rma.Reach, "put", NATIVE), (rma.Reach, "get", NATIVE), (rma.Reach, "change", NATIVE)),
            *((Outgoing, "_inline", STAGED), (stage, "stage", STAGED), (Origins, "stage", STAGED)),
        ):
            setattr(owner, name, self._noting(getattr(owner, name), how))
        together = self._counting_all(vars(Prequest)["Startall"].__func__)
        setattr(Prequest, "Startall", classmethod(together))  # noqa: B010  to the type checker it is a method
        Incoming._move = self._noting_transport(Incoming._move)  # type: ignore[method-assign]
        for cls in (communicator.Comm, communicator.Intracomm, communicator.Topocomm):
            for operation, buffers in OPERATIONS.items():
                self._record(cls, operation, buffers)
        for operation, (buffers, _) in ACCESSES.items():
            self._record(Win, operation, buffers)
        self._record(Win, "Put_signal", ACCESSES["Put"][0])

    def _record(self, cls: type, operation: str, buffers: tuple[Argument, ...]) -> None:
        method = getattr(cls, operation, None)
        if method is not None and not hasattr(method, "recorded"):
            setattr(cls, operation, self._recording(operation, buffers, method))

    def _noting(self, function: _Method, how: str) -> _Method:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._how = how
            return function(*args, **kwargs)

        return noting

    def _noting_transport(self, function: _Method) -> _Method:
        """Of a receive: where the data came from."""

        @functools.wraps(function)
        def noting(incoming: Incoming) -> Any:
            self._how = STAGED if incoming.is_inline else NATIVE
            return function(incoming)

        return noting

    def _recording(self, operation: str, buffers: tuple[Argument, ...], method: _Method) -> _Method:
        @functools.wraps(method)
        def recording(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self._how = HOST
            began = time.perf_counter()
            result = method(owner, *args, **kwargs)
            seconds = time.perf_counter() - began
            nbytes = max(_length(argument(which, args, kwargs)) for which in buffers)
            if is_persistent(operation):
                self._count_starts(operation, nbytes, result)
            else:
                received_later = isinstance(result, Request) and self._how == HOST
                self._add(operation, NATIVE if received_later else self._how, nbytes, seconds)
            return result

        recording.recorded = True  # type: ignore[attr-defined]
        return recording

    def _add(self, operation: str, how: str, nbytes: int, seconds: float) -> None:
        calls, all_nbytes, all_seconds = self.rows.get((operation, how), (0, 0, 0.0))
        self.rows[operation, how] = calls + 1, all_nbytes + nbytes, all_seconds + seconds

    def _count_starts(self, operation: str, nbytes: int, request: Any) -> None:
        """Count when a persistent request is started, alone or among others."""
        native, staged = isinstance(request, persistent.Prequest), isinstance(request, StagedPrequest)
        how, name = NATIVE if native else STAGED if staged else HOST, "prepare" if staged else "Start"
        begin = getattr(request, name)
        request.counted = operation, how, nbytes

        @functools.wraps(begin)
        def counting() -> None:
            began = time.perf_counter()
            begin()
            self._add(operation, how, nbytes, time.perf_counter() - began)

        setattr(request, name, counting)

    def _counting_all(self, start_all: _Method) -> _Method:
        """The same for those that are started together by one launch, which does not start each of them."""

        @functools.wraps(start_all)
        def counting(cls: type, requests: Any) -> None:
            began = time.perf_counter()
            start_all(cls, requests)
            seconds = (time.perf_counter() - began) / max(len(requests), 1)
            for request in requests:
                if hasattr(request, "counted") and not isinstance(request, StagedPrequest):  # which are prepared
                    operation, how, nbytes = request.counted
                    self._add(operation, how, nbytes, seconds)

        return counting

    def print(self) -> None:
        """Print the sum over all ranks on rank 0, what took longest first. Collective."""
        if MPI.Is_finalized():
            return
        everywhere = MPI.COMM_WORLD.gather(self.rows)
        if everywhere is None:
            return
        lines = []
        for key in {key for rows in everywhere for key in rows}:
            there = [rows[key] for rows in everywhere if key in rows]
            calls, nbytes = sum(row[0] for row in there), sum(row[1] for row in there)
            lines.append((max(row[2] for row in there), key, calls, nbytes))
        print(f"\n{'operation':24}{'how':8}{'calls':>10}{'MB':>12}{'seconds':>10}   (of the slowest rank)")
        lines.sort(reverse=True)
        for seconds, (operation, how), calls, nbytes in lines:
            print(f"{operation:24}{how:8}{calls:10}{nbytes / 1e6:12.3f}{seconds:10.3f}")
        for how in dict.fromkeys(how for _, (_, how), _, _ in lines):
            print(f"{how}: {_MEANINGS[how]}", flush=True)


def _length(spec: Any) -> int:
    """The bytes of an array, all of it."""
    array = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    try:
        return int(array.nbytes if hasattr(array, "nbytes") else memoryview(array).nbytes)
    except TypeError:  # no buffer: None, MPI.IN_PLACE
        return 0
