"""Probes tell how long a message is; a device array's is an envelope, which has to be read for that.

MPI shows nothing of a message before it is received. So one that may be an envelope is received when a probe finds it,
and sent to this process itself again: whoever receives it gets it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .begin import GAP, parted
from .envelope import may_be_one, unpack

if TYPE_CHECKING:
    pass

_itself = MPI.COMM_NULL  # this process alone; made at the first use
_sent: list[tuple[MPI.Request, Any]] = []  # what has not been received yet


class ProbedMessage(NamedTuple):
    """A message that a probe has found, or one that came before it."""

    source: int
    tag: int
    nbytes: int  # of its data, once it has been read; of MPI's message before
    message: MPI.Message  # from this process itself, once it has been read
    is_read: bool = False

    @classmethod
    def of(cls, message: MPI.Message, known: MPI.Status) -> ProbedMessage:
        """What MPI has matched and knows of it."""
        return cls(known.source, known.tag, known.Get_elements(MPI.BYTE), message)

    def fits(self, source: int, tag: int) -> bool:
        """Whether a receive would match it."""
        return source in (self.source, MPI.ANY_SOURCE) and tag in (self.tag, MPI.ANY_TAG)

    def read(self) -> ProbedMessage:
        """The same, with the length of its data."""
        if self.is_read or not may_be_one(self.nbytes):
            return self
        nbytes, message = _to_itself(self.message, self.nbytes)
        return ProbedMessage(self.source, self.tag, nbytes, message, True)

    def tell(self, status: MPI.Status | None) -> None:
        """Say whose message it is."""
        if status is not None:
            status.Set_source(self.source)
            status.Set_tag(self.tag)

    def fill(self, status: MPI.Status | None) -> None:
        """What a probe tells of it."""
        if status is not None:
            self.tell(status)
            status.Set_error(MPI.SUCCESS)
            status.Set_elements(MPI.BYTE, self.nbytes)


def _to_itself(message: MPI.Message, received: int) -> tuple[int, MPI.Message]:
    """Receive a message that may be an envelope, and send it to this process itself; how long its data is."""
    global _itself
    if _itself == MPI.COMM_NULL:
        _itself = MPI.COMM_SELF.Dup()
    data, datatype = np.empty(received + GAP, np.uint8), parted(received + GAP)
    MPI.Message.Recv(message, [data, 1, datatype])
    found = unpack(data)
    _sent[:] = [(request, kept) for request, kept in _sent if not request.Test()]
    _sent.append((_itself.Isend([data, 1, datatype], 0), data))
    datatype.Free()
    return found[0].nbytes if found else received, _itself.Mprobe(0)


def receive_object(held: ProbedMessage, status: MPI.Status | None = None) -> Any:
    """The Python object of a message that turned out to be one."""
    data = np.empty(held.nbytes, np.uint8)
    MPI.Message.Recv(held.message, [data, MPI.BYTE], status)
    held.tell(status)
    return MPI.pickle.loads(data.tobytes())


def ireceive_object(held: ProbedMessage) -> MPI.Request:
    """A request for the same."""
    data = np.empty(held.nbytes, np.uint8)
    MPI.Message.Recv(held.message, [data, MPI.BYTE])
    _sent.append((_itself.Isend([data, MPI.BYTE], 0), data))
    return _itself.irecv(bytearray(held.nbytes), 0)
