"""Cases of operations that only move elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ....requests.request import Request
from ..memory import Memory
from .case import Case, Options


class Bcast(Case):
    method, kind = "Bcast", "bcast"
    forms = (True,)
    blocks = False
    rooted = True

    def source(self, in_place: bool) -> Any:
        return self.recv if self.is_root else None

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        return self.recv, self.root

    def expected(self) -> Any:
        return self.own(self.root)


class Counted(Case):
    """Equal counts, passed to an operation that takes any counts."""

    def whole(self, array: Any) -> Any:
        return [array, [self.block] * self.size]


class Allgather(Case):
    method, kind = "Allgather", "allgather"
    sends_all = False

    def source(self, in_place: bool) -> Any:
        return self.part(self.recv, self.rank) if in_place and self.has_result else self.send

    def expected(self) -> Any:
        return self.xp.concatenate([self.own(rank, count=self.block) for rank in range(self.size)])


class Allgatherv(Counted, Allgather):
    method = "Allgatherv"


class Gather(Allgather):
    method, kind = "Gather", "gather"
    rooted = to_root = True


class Gatherv(Counted, Gather):
    method = "Gatherv"


class Scatter(Case):
    method, kind = "Scatter", "scatter"
    rooted = True
    receives_all = False

    def source(self, in_place: bool) -> Any:
        return self.send if self.is_root else None

    def target(self, in_place: bool) -> Any:
        return self.part(self.send, self.rank) if in_place and self.is_root else self.recv

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        send = self.whole(self.send) if self.is_root else None
        return send, MPI.IN_PLACE if in_place and self.is_root else self.recv, self.root

    def expected(self) -> Any:
        return self.own(self.root, self.rank * self.block, self.block)


class Scatterv(Counted, Scatter):
    method = "Scatterv"


class Alltoall(Case):
    method, kind = "Alltoall", "alltoall"

    def expected(self) -> Any:
        first = self.rank * self.block
        return self.xp.concatenate([self.own(rank, first, self.block) for rank in range(self.size)])


class Alltoallv(Counted, Alltoall):
    """Alltoallv with equal counts: on the device for pyncclx, on the host for peers.

    pyncclx also writes all outputs. Counts on the host are less work.
    """

    method, kind = "Alltoallv", "alltoallv"
    forms = (False,)

    def __init__(self, comm: Any, nbytes: int, options: Options, memory: Memory) -> None:
        super().__init__(comm, nbytes, options, memory)
        self.counts = self.xp.full(self.size, self.block, np.int64)
        self.recv_counts, self.recv_displs, self.status = (self.xp.zeros(self.size, np.int64) for _ in range(3))
        self.total = self.xp.zeros(1, np.int64)

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        return self.whole(self.send), self.whole(self.recv)

    def call(self, in_place: bool) -> Callable[[], Any]:
        send, recv = [self.send, self.counts], [self.recv, (self.recv_counts, self.recv_displs)]
        outputs = {"total": self.total, "status": self.status, "algorithm": self.options.algorithm}
        return functools.partial(self.comm.Alltoallv, send, recv, layout="packed", **outputs)


def alternating(case: Case, send: Callable[[], Any], recv: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that runs a blocking send and a blocking receive.

    Every second rank receives first.
    """
    first, second = (recv, send) if case.rank % 2 else (send, recv)

    def both() -> None:
        first()
        second()

    return both


class Sendrecv(Case):
    """Ring of `Sendrecv`: each rank sends to the next one.

    The host matches messages, so graphs cannot hold them.
    """

    method, kind = "Sendrecv", "sendrecv"
    forms = (False,)
    blocks = False
    capturable = False

    def __init__(self, comm: Any, nbytes: int, options: Options, memory: Memory) -> None:
        super().__init__(comm, nbytes, options, memory)
        self.next, self.previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        return self.send, self.next, 0, self.recv, self.previous, 0

    def expected(self) -> Any:
        return self.own(self.previous)


class Isend(Sendrecv):
    """Ring by `Irecv`, `Isend` and `Waitall`."""

    method, mpi_method = "Isend", "Sendrecv"

    def call(self, in_place: bool) -> Callable[[], Any]:
        comm = self.comm

        def around() -> None:
            Request.Waitall([comm.Irecv(self.recv, self.previous), comm.Isend(self.send, self.next)])

        return around


class Send(Sendrecv):
    """Ring by `Send` and `Recv`; every second rank receives first.

    A single rank calls `Sendrecv`.
    """

    method, mpi_method, kind = "Send", "Sendrecv", "send"

    def call(self, in_place: bool) -> Callable[[], Any]:
        if self.size == 1:
            return functools.partial(self.comm.Sendrecv, *self.arguments(in_place))
        send = functools.partial(self.comm.Send, self.send, self.next)
        return alternating(self, send, functools.partial(self.comm.Recv, self.recv, self.previous))


class PutSignal(Sendrecv):
    """Ring by one-sided operations, which graphs can hold, as they need no matching."""

    method, mpi_method = "Put_signal", "Sendrecv"
    capturable = True
    windows_only = True

    def call(self, in_place: bool) -> Callable[[], Any]:
        win = self.memory.win

        def around() -> None:
            win.Put_signal(self.send, self.next)
            win.Wait_signal()

        return around
