"""Probes of device arrays' messages, whose length is in the envelope.

MPI does not show the content of a message before it is received. So a probe receives a message that may be an envelope,
and sends it again, to this process itself. The program's receive then matches the second message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..requests.open_receives import LOCK
from ..requests.wrapped import SentToItself
from ..system.process import held
from .envelope import GAP_NBYTES, ITSELF, SHORT_NBYTES, may_be_envelope, two_part_datatype, unpack

# Messages to this process itself that have not been received, and their memory.
_sent: list[tuple[MPI.Request, Any]] = held([])
# All objects that hold a message.
HOLDING: set[ProbedMessages] = set()


class ProbedMessage(NamedTuple):
    """A message that a probe has matched, or an earlier message from the same rank.

    `nbytes` is the length of MPI's message. In the result of `read`, it is the length of the data. To find this length,
    `read` receives a message that may have an envelope and sends it again, to this process; `message` is then the new
    message.
    """

    source: int
    tag: int
    nbytes: int
    message: MPI.Message
    is_read: bool = False

    @classmethod
    def of(cls, message: MPI.Message, status: MPI.Status) -> ProbedMessage:
        """Return the probed message for a message that MPI has matched, and its status."""
        return cls(status.source, status.tag, status.Get_elements(MPI.BYTE), message)

    def fits(self, source: int, tag: int) -> bool:
        """Return whether a receive with this source and tag would match it."""
        return source in (self.source, MPI.ANY_SOURCE) and tag in (self.tag, MPI.ANY_TAG)

    @mpi_bootstrap.interrupts_deferred()
    def read(self) -> ProbedMessage:
        """Return this message with the length of its data; read its envelope if needed."""
        if self.is_read or not may_be_envelope(self.nbytes):
            return self
        nbytes, message = _send_to_itself(self.message, self.nbytes)
        return ProbedMessage(self.source, self.tag, nbytes, message, True)

    def set_origin(self, status: MPI.Status | None) -> None:
        """Set the source and tag of a status to those of the message."""
        if status is not None:
            status.Set_source(self.source)
            status.Set_tag(self.tag)

    def end(self, status: MPI.Status | None) -> None:
        """Set a status' source and tag after the receive; release the message's memory."""
        self.set_origin(status)
        if self.is_read:
            with LOCK:
                _release_received()

    def fill(self, status: MPI.Status | None) -> None:
        """Set a status as a probe does."""
        if status is not None:
            self.set_origin(status)
            status.Set_error(MPI.SUCCESS)
            status.Set_elements(MPI.BYTE, self.nbytes)


class ProbedMessages:
    """Messages that probes have matched and that have not been received."""

    def __init__(self) -> None:
        self._messages: list[ProbedMessage] = []

    @property
    def are_held(self) -> bool:
        """Whether any message is held."""
        return bool(self._messages)

    def find(self, source: int, tag: int) -> ProbedMessage | None:
        """Return the first message that a receive would match; None if there is none."""
        return next((each for each in self._messages if each.fits(source, tag)), None) if self._messages else None

    def find_and_read(self, source: int, tag: int) -> ProbedMessage | None:
        """Return the first message that matches, with the length of its data."""
        found = self.find(source, tag)
        if found is None:
            return None
        read = found.read()
        self._messages[self._messages.index(found)] = read
        return read

    def take(self, source: int, tag: int) -> ProbedMessage | None:
        """Remove and return the first message that a receive would match."""
        found = self.find(source, tag)
        if found is not None:
            self.forget(found)
        return found

    def forget(self, message: ProbedMessage) -> None:
        """Remove a message that has been received or will be."""
        self._messages.remove(message)
        if not self._messages:
            HOLDING.discard(self)

    def put_back(self, message: ProbedMessage) -> None:
        """Hold a message that an interrupted call matched but did not receive.

        It is placed before messages that arrived later.
        """
        if message.message and message.source != MPI.PROC_NULL and message not in self._messages:
            self._messages.insert(0, message)
            HOLDING.add(self)

    @mpi_bootstrap.interrupts_deferred()
    def hold(self, comm: MPI.Comm, probed: MPI.Status) -> ProbedMessage:
        """Match and hold the message that `probed` describes, which may be an envelope.

        Earlier messages from the same rank with other tags are held too, unread, because a receive with MPI.ANY_TAG
        must get them first.
        """
        status = MPI.Status()
        while True:
            found = MPI.Comm.Mprobe(comm, probed.source, MPI.ANY_TAG, status)
            message = ProbedMessage.of(found, status)
            if message.tag == probed.tag:
                message = message.read()
            self._messages.append(message)
            HOLDING.add(self)
            if message.tag == probed.tag:
                return message


def _send_to_itself(message: MPI.Message, received_nbytes: int) -> tuple[int, MPI.Message]:
    """Receive a message that may be an envelope, and send it to this process itself.

    Return the length of its data, and the matched message from this process.
    """
    data = np.empty(received_nbytes + GAP_NBYTES, np.uint8)
    if received_nbytes == SHORT_NBYTES:
        datatype = MPI.BYTE.Create_contiguous(SHORT_NBYTES).Commit()
    else:
        datatype = two_part_datatype(data.nbytes)
    MPI.Message.Recv(message, [data, 1, datatype])
    envelope = unpack(data, received_nbytes)
    # Hold the lock, so that no other thread matches the message.
    with LOCK:
        again = _begin_to_send([data, 1, datatype]).Mprobe(0)
    datatype.Free()
    return envelope.nbytes if envelope else received_nbytes, again


def _begin_to_send(spec: Any) -> MPI.Intracomm:
    """Start to send a message to this process itself; return the communicator."""
    itself = ITSELF.get()
    _release_received()
    _sent.append((itself.Isend(spec, 0), spec))
    return itself


def _release_received() -> None:
    """Release the memory of received messages to this process itself."""
    _sent[:] = [(request, kept) for request, kept in _sent if not request.Test()]


def receive_object(probed: ProbedMessage, status: MPI.Status | None = None) -> Any:
    """Receive a matched message that is a Python object, and return the object."""
    data = np.empty(probed.nbytes, np.uint8)
    MPI.Message.Recv(probed.message, [data, MPI.BYTE], status)
    probed.end(status)
    return MPI.pickle.loads(data.tobytes())


def ireceive_object(probed: ProbedMessage) -> MPI.Request:
    """Return a request that receives a matched message as a Python object."""
    data = np.empty(probed.nbytes, np.uint8)
    MPI.Message.Recv(probed.message, [data, MPI.BYTE])
    with LOCK:
        request = _begin_to_send([data, MPI.BYTE]).irecv(bytearray(probed.nbytes), 0)
    return SentToItself(request, probed.source, probed.tag)
