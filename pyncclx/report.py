"""What a program's operations were done by: counted call by call, printed over all ranks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from . import communicator
from .messages.endpoint import Endpoint
from .messages.send import Outgoing
from .staging import stage
from .staging.operations import OPERATIONS, argument
from .team import Team

_Method = Callable[..., Any]


class Recorder:
    """Counts the buffer operations of all our communicators, from when it is made.

    What nonblocking and persistent calls do after they have returned is not in their time.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[int, int, float]] = {}  # (operation, how): calls, bytes, seconds
        self._how = "host"
        Team.launch = self._noting(Team.launch, "native")  # type: ignore[method-assign]
        Endpoint.launch = self._noting(Endpoint.launch, "native")  # type: ignore[method-assign]
        Outgoing._inline = self._noting(Outgoing._inline, "staged")  # type: ignore[method-assign]
        stage.stage = self._noting(stage.stage, "staged")
        for cls in (communicator.Comm, communicator.Intracomm, communicator.Topocomm, communicator.Cartcomm):
            for operation in OPERATIONS:
                method = getattr(cls, operation, None)
                if method is not None and not hasattr(method, "recorded"):
                    setattr(cls, operation, self._recording(operation, method))

    def _noting(self, function: _Method, how: str) -> _Method:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._how = how
            return function(*args, **kwargs)

        return noting

    def _recording(self, operation: str, method: _Method) -> _Method:
        @functools.wraps(method)
        def recording(comm: MPI.Comm, *args: Any, **kwargs: Any) -> Any:
            self._how = "host"
            began = time.perf_counter()
            result = method(comm, *args, **kwargs)
            seconds = time.perf_counter() - began
            calls, nbytes, before = self.rows.get((operation, self._how), (0, 0, 0.0))
            row = calls + 1, nbytes + _nbytes(operation, args, kwargs), before + seconds
            self.rows[operation, self._how] = row
            return result

        recording.recorded = True  # type: ignore[attr-defined]
        return recording

    def print(self) -> None:
        """Print the sum over all ranks on rank 0. Collective."""
        if MPI.Is_finalized():
            return
        everywhere = MPI.COMM_WORLD.gather(self.rows)
        if everywhere is None:
            return
        print(f"\n{'operation':24}{'how':8}{'calls':>10}{'MB':>12}{'seconds':>10}   (slowest rank's seconds)")
        for key in sorted({key for rows in everywhere for key in rows}):
            there = [rows[key] for rows in everywhere if key in rows]
            calls, nbytes = sum(row[0] for row in there), sum(row[1] for row in there)
            seconds = max(row[2] for row in there)
            print(f"{key[0]:24}{key[1]:8}{calls:10}{nbytes / 1e6:12.3f}{seconds:10.3f}", flush=True)


def _nbytes(operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The bytes of the largest array in a call, all of it."""
    return max(_length(argument(which, args, kwargs)) for which in OPERATIONS[operation])


def _length(spec: Any) -> int:
    array = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    try:
        return int(array.nbytes if hasattr(array, "nbytes") else memoryview(array).nbytes)
    except TypeError:  # no buffer: None, MPI.IN_PLACE
        return 0
