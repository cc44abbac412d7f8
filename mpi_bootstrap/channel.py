"""Collectives for a thread of the library, on the program's communicator.

MPI matches the collectives of a communicator, including nonblocking ones, in the order of the calls. A thread that
calls them at the same time as the program cannot keep to that order. For persistent collectives, MPI requires this
order of the initializations only, not of the starts. So a `Channel` initializes one persistent Allgather, in a call
that all ranks make. The thread then implements all other collectives by starting it.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .plain import plain

CHUNK_NBYTES = 4096  # bytes that each rank contributes to one start


def has_channels() -> bool:
    """Return whether MPI has persistent collectives (MPI 4), and threads may call it."""
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        return False
    try:
        MPI.COMM_SELF.Barrier_init().Free()
    except (NotImplementedError, MPI.Exception):
        return False
    return True


class Channel:
    """Nonblocking collectives that MPI orders separately from those of the program.

    The constructor is collective, but no rank waits in it.

    Only one thread of each rank may use a channel at a time. A channel has the methods of mpi4py's communicators that
    this package calls; each returns a request with the method `Test`. If a communicator has an attribute `channel`, all
    functions of this package use that channel in place of the communicator.

    Examples
    --------
    >>> channel = Channel(MPI.COMM_SELF)
    >>> request = channel.Ibarrier()
    >>> while not request.Test():
    ...     pass
    >>> channel.close()
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._own, self._all = bytearray(CHUNK_NBYTES), bytearray(CHUNK_NBYTES * self.size)
        self._start = plain(comm).Allgather_init([self._own, MPI.BYTE], [self._all, MPI.BYTE])
        self._is_started = self._is_closed = False
        self._last: _Gathering | None = None

    def Ibarrier(self) -> _Gathering:
        """Begin a barrier."""
        return self._gather(b"", 0, lambda parts: None)

    def Iallgather(self, sendbuf: list[Any], recvbuf: list[Any]) -> _Gathering:
        """Begin an allgather in which all ranks send the same number of bytes."""
        send, recv = map(_bytes_of, (sendbuf, recvbuf))

        def store(parts: list[bytes]) -> None:
            recv[:] = b"".join(parts)

        return self._gather(send, len(send), store)

    def Iallgatherv(self, sendbuf: list[Any], recvbuf: list[Any]) -> _Gathering:
        """Begin an allgather of bytes; `recvbuf` is ``[buffer, counts, MPI.BYTE]``."""
        send, (_, counts, _), recv = _bytes_of(sendbuf), recvbuf, _bytes_of(recvbuf)

        def store(parts: list[bytes]) -> None:
            recv[:] = b"".join(part[:count] for part, count in zip(parts, counts, strict=True))

        return self._gather(send, max(counts), store)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> _Gathering:
        """Begin a reduction; `sendbuf` must be MPI.IN_PLACE, and `op` commutative."""
        recv = _bytes_of(recvbuf)

        def store(parts: list[bytes]) -> None:
            for part in parts[: self.rank] + parts[self.rank + 1 :]:
                op.Reduce_local(_like(recvbuf, part), recvbuf)

        return self._gather(bytes(recv), len(recv), store)

    def Ibcast(self, buf: Any, root: int) -> _Gathering:
        """Begin a broadcast."""
        own = _bytes_of(buf)

        def store(parts: list[bytes]) -> None:
            own[:] = parts[root]

        return self._gather(own if self.rank == root else b"", len(own), store)

    def _gather(self, data: bytes | memoryview, nbytes: int, store: Callable[[list[bytes]], None]) -> _Gathering:
        self._last = _Gathering(self, data, nbytes, store, self._last)
        return self._last

    def take_chunk(self, data: bytes | memoryview) -> list[bytes] | None:
        """Exchange one chunk; return all ranks' chunks, or None while a rank is missing.

        Raises
        ------
        RuntimeError
            The channel has been closed.
        """
        if self._is_closed:
            raise RuntimeError("the communicator or the program ends before all ranks have made the call")
        if not self._is_started:
            self._own[: len(data)] = data
            self._start.Start()
            self._is_started = True
        if not self._start.Test():
            return None
        self._is_started = False
        begins = range(0, len(self._all), CHUNK_NBYTES)
        return [bytes(self._all[begin : begin + CHUNK_NBYTES]) for begin in begins]

    def end(self) -> None:
        """Make a thread that waits on the channel raise RuntimeError. Not collective."""
        self._is_closed = True

    def close(self) -> None:
        """Free the persistent collective, unless it is active. Not collective."""
        self._is_closed = True
        if not self._is_started and self._start != MPI.REQUEST_NULL:
            self._start.Free()


class _Gathering:
    """A request of a channel: an allgather of at most `nbytes` bytes of each rank.

    `store` gets the bytes of all ranks, each padded to `nbytes`. If the channel's previous request is unfinished,
    `Test` completes that one first.
    """

    def __init__(
        self,
        channel: Channel,
        data: bytes | memoryview,
        nbytes: int,
        store: Callable[[list[bytes]], None],
        before: _Gathering | None,
    ) -> None:
        self._channel, self._data, self._store = channel, data, store
        self._left = max(1, -(-nbytes // CHUNK_NBYTES))  # chunks
        self._begin, self._parts = 0, [b""] * channel.size
        self._nbytes, self._before = nbytes, before

    def Test(self) -> bool:
        """Make progress; return whether the allgather is complete."""
        if self._before is not None:
            if not self._before.Test():
                return False
            self._before = None
        while self._left:
            chunks = self._channel.take_chunk(self._data[self._begin : self._begin + CHUNK_NBYTES])
            if chunks is None:
                return False
            self._begin, self._left = self._begin + CHUNK_NBYTES, self._left - 1
            self._parts = [part + chunk for part, chunk in zip(self._parts, chunks, strict=True)]
            if not self._left:
                self._store([part[: self._nbytes] for part in self._parts])
        return True


def _bytes_of(spec: Any) -> memoryview:
    """Return the bytes of a buffer, or of a list that begins with one."""
    return memoryview(spec[0] if isinstance(spec, list) else spec).cast("B")


def _like(spec: Any, data: bytes) -> Any:
    """Return a buffer of the same form as `spec` that holds `data`."""
    return [data, *spec[1:]] if isinstance(spec, list) else array.array(spec.typecode, data)
