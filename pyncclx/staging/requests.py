"""Requests of operations on host copies, and the calls that complete many requests at once.

Nonblocking calls need no class of requests, see `completion.land_on_completion`; persistent ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from ..requests import persistent
from ..requests import request as messages
from ..requests.host_receive import ENVELOPE_MAGIC, HostReceiveRequest
from .completion import abandon, forget, look_after_abandoned, upload
from .copies import Copy
from .stand_ins import StandIn

_Indices = Callable[[int, Any], Iterable[int]]
# Which of n requests a call has completed, by what it returned.
_COMPLETED: dict[str, _Indices] = {
    "Waitall": lambda n, _: range(n),
    "waitall": lambda n, _: range(n),
    "Testall": lambda n, flag: range(n if flag else 0),
    "testall": lambda n, result: range(n if result[0] else 0),
    "Waitany": lambda _, index: [index],
    "waitany": lambda _, result: [result[0]],
    "Testany": lambda _, result: [result[0]] if result[1] else [],
    "testany": lambda _, result: [result[0]] if result[1] else [],
    "Waitsome": lambda _, indices: indices or [],
    "waitsome": lambda _, result: result[0] or [],
    "Testsome": lambda _, indices: indices or [],
    "testsome": lambda _, result: result[0] or [],
}


def _completing(name: str, completed: _Indices) -> Any:
    original = getattr(MPI.Request, name)
    with_ours = getattr(messages.Request, name)  # takes requests of messages with device arrays among others

    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        ours = any(isinstance(request, (messages.Request, HostReceiveRequest)) for request in requests)
        result = (with_ours if ours else original)(requests, *args, **kwargs)
        land(requests[i] for i in completed(len(requests), result) if i >= 0)  # MPI.UNDEFINED is negative
        return result

    method.__name__, method.__doc__ = name, original.__doc__
    return classmethod(method)


class Request(StandIn, MPI.Request):
    """An `mpi4py.MPI.Request`; the calls that complete many take staged ones among them."""

    like = MPI.Request


for _name, _completed in _COMPLETED.items():
    setattr(Request, _name, _completing(_name, _completed))

REQUEST_NULL = Request(MPI.REQUEST_NULL)
Request.constants = {"REQUEST_NULL": REQUEST_NULL}


class Prequest(MPI.Prequest, Request):
    """An `mpi4py.MPI.Prequest`; `Startall` takes staged ones among others."""

    like = MPI.Prequest

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """As mpi4py's."""
        for request in requests:
            if isinstance(request, StagedPrequest):
                request.prepare()
        persistent.Prequest.Startall(requests)


class Grequest(MPI.Grequest, Request):
    """An `mpi4py.MPI.Grequest`."""

    like = MPI.Grequest

    @classmethod
    def Start(cls, *args: Any, **kwargs: Any) -> Grequest:
        """As mpi4py's."""
        return cls(super().Start(*args, **kwargs))


class StagedPrequest(Prequest):
    """A persistent request that copies device arrays to the host when started, and back when completed.

    Parameters
    ----------
    request : MPI.Prequest
        mpi4py's, on the host copies.
    copies : sequence of Copy
    partitions : int
        Of a partitioned operation; 0 for others.
    """

    def __new__(cls, request: MPI.Prequest, *_: Any) -> StagedPrequest:
        """As mpi4py's, which takes the request alone."""
        return super().__new__(cls, request)

    def __init__(self, request: MPI.Prequest, copies: Sequence[Copy], partitions: int) -> None:
        look_after_abandoned()
        self._copies, self._partitions = copies, partitions
        self._active = False

    def Free(self) -> None:
        """As mpi4py's: if it has been started, the operation goes on."""
        if self._active:
            self._active = False
            abandon(MPI.Prequest(self), self._copies)
            forget(self)
        else:
            super().Free()

    def __del__(self) -> None:
        if not MPI.Is_finalized() and self and self._active:
            abandon(MPI.Prequest(self), self._copies)

    def prepare(self) -> None:
        """Take the device arrays to the host, just before the operation is started.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST: it is active. What has come so far is kept.
        """
        if self._active:
            self._settle()
        for copy in self._copies:
            if not self._partitions or copy.written:  # partitions to send are copied when they are ready
                copy.download()
        self._active = True

    def _settle(self) -> None:
        """Raise unless mpi4py's own calls have completed it, which do not know of the device arrays."""
        index, over = MPI.Request.Testany([self])
        if over:
            self.land()
        if not over or index != MPI.UNDEFINED:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request is active; Wait for it first")

    def land(self) -> None:
        """Take the result to the device, if the operation has been started and is complete.

        Raises
        ------
        NotSupported
            What has come is the envelope of a device array, which kernels were to receive.
        """
        if self._active:
            self._active = False
            if any(copy.written and bytes(copy.host[: len(ENVELOPE_MAGIC)]) == ENVELOPE_MAGIC for copy in self._copies):
                raise NotSupported(
                    "Recv_init: the message is a device array's, from Send or Isend, whose data kernels move; receive "
                    "it by Recv or Irecv, or send it by Send_init"
                )
            upload(self._copies)

    def Start(self) -> None:
        """As mpi4py's."""
        self.prepare()
        super().Start()

    def Wait(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's."""
        super().Wait(status)
        self.land()
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """As mpi4py's."""
        flag = super().Test(status)
        if flag:
            self.land()
        return flag

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's."""
        message = super().wait(status)
        self.land()
        return message

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As mpi4py's."""
        flag, message = super().test(status)
        if flag:
            self.land()
        return flag, message

    def Pready(self, partition: int) -> None:
        """As mpi4py's."""
        self._take([partition])
        super().Pready(partition)

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """As mpi4py's."""
        self._take(range(partition_low, partition_high + 1))
        super().Pready_range(partition_low, partition_high)

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """As mpi4py's."""
        self._take(partitions)
        super().Pready_list(partitions)

    def Parrived(self, partition: int) -> bool:
        """As mpi4py's."""
        flag = super().Parrived(partition)
        if flag:
            upload(self._copies)
        return flag

    def _take(self, partitions: Iterable[int]) -> None:
        for copy in self._copies:
            for partition in partitions:
                copy.download(copy.partition(partition, self._partitions))


def land(requests: Iterable[MPI.Request]) -> None:
    """After requests have been completed together."""
    for request in requests:
        if isinstance(request, StagedPrequest):
            request.land()
