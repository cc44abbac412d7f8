"""Probes report how long a message is; a device array's is an envelope, which has to be read for that.

MPI shows nothing of a message before it is received. So one that may be an envelope is received when a probe finds it,
and sent to this process itself again, where the receive that comes later gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..requests.open_receives import LOCK
from ..requests.sent_to_itself import SentToItself
from ..system.process import held
from .envelope import may_be_envelope, unpack
from .mpi_transfer import GAP_NBYTES, ITSELF, two_part_datatype

_sent: list[tuple[MPI.Request, Any]] = held([])  # messages to itself that are not received yet, and their memory
HOLDING: set[ProbedMessages] = set()  # those that hold any message


class ProbedMessage(NamedTuple):
    """A message that a probe has found, or one that came before it."""

    source: int
    tag: int
    nbytes: int  # of its data, once it has been read; of MPI's message before
    message: MPI.Message  # from this process itself, once it has been read
    is_read: bool = False

    @classmethod
    def of(cls, message: MPI.Message, status: MPI.Status) -> ProbedMessage:
        """Make it of a message that MPI has matched, and its status."""
        return cls(status.source, status.tag, status.Get_elements(MPI.BYTE), message)

    def fits(self, source: int, tag: int) -> bool:
        """Whether a receive would match it."""
        return source in (self.source, MPI.ANY_SOURCE) and tag in (self.tag, MPI.ANY_TAG)

    def read(self) -> ProbedMessage:
        """Return the same message with the length of its data."""
        if self.is_read or not may_be_envelope(self.nbytes):
            return self
        nbytes, message = _send_to_itself(self.message, self.nbytes)
        return ProbedMessage(self.source, self.tag, nbytes, message, True)

    def set_origin(self, status: MPI.Status | None) -> None:
        """Set a status to its source and tag."""
        if status is not None:
            status.Set_source(self.source)
            status.Set_tag(self.tag)

    def fill(self, status: MPI.Status | None) -> None:
        """Set a status as a probe does."""
        if status is not None:
            self.set_origin(status)
            status.Set_error(MPI.SUCCESS)
            status.Set_elements(MPI.BYTE, self.nbytes)


class ProbedMessages:
    """The messages of a communicator that probes have found, until they are received."""

    def __init__(self) -> None:
        self._messages: list[ProbedMessage] = []

    def find(self, source: int, tag: int) -> ProbedMessage | None:
        """Return the first that a receive would match."""
        return next((each for each in self._messages if each.fits(source, tag)), None) if self._messages else None

    def find_and_read(self, source: int, tag: int) -> ProbedMessage | None:
        """Return it with the length of its data."""
        found = self.find(source, tag)
        if found is None:
            return None
        read = found.read()
        self._messages[self._messages.index(found)] = read
        return read

    def take(self, source: int, tag: int) -> ProbedMessage | None:
        """Return it, to be received."""
        found = self.find(source, tag)
        if found is not None:
            self.forget(found)
        return found

    def forget(self, message: ProbedMessage) -> None:
        """Hold a message no longer: it has been received, or will be."""
        self._messages.remove(message)
        if not self._messages:
            HOLDING.discard(self)

    def hold(
        self, comm: MPI.Comm, probed: MPI.Status, letter_tag: int, letters: Callable[[MPI.Message, int], None]
    ) -> ProbedMessage | None:
        """Take a message from MPI that a probe has found, with this status, if it may be an envelope.

        Messages with other tags that came before it from the same rank are taken along, unread, for a receive with
        MPI.ANY_TAG must get them first. Messages with `letter_tag` among them are given to `letters`.
        """
        if not may_be_envelope(probed.Get_elements(MPI.BYTE)):
            return None
        status = MPI.Status()
        while True:
            found = MPI.Comm.Mprobe(comm, probed.source, MPI.ANY_TAG, status)
            if status.tag == letter_tag:
                letters(found, probed.source)
                continue
            message = ProbedMessage.of(found, status)
            if message.tag == probed.tag:
                message = message.read()
            self._messages.append(message)
            HOLDING.add(self)
            if message.tag == probed.tag:
                return message


def _send_to_itself(message: MPI.Message, received_nbytes: int) -> tuple[int, MPI.Message]:
    """Receive a message that may be an envelope, and send it to this process itself; return its data's length, too."""
    nbytes = received_nbytes + GAP_NBYTES
    data, datatype = np.empty(nbytes, np.uint8), two_part_datatype(nbytes)
    MPI.Message.Recv(message, [data, 1, datatype])
    envelope = unpack(data, received_nbytes)
    again = _send([data, 1, datatype])
    datatype.Free()
    return envelope.nbytes if envelope else received_nbytes, again


def _send(spec: Any) -> MPI.Message:
    """Send a message to this process itself, and return it matched."""
    with LOCK:  # no other thread gets it
        return _begin_to_send(spec).Mprobe(0)


def _begin_to_send(spec: Any) -> MPI.Intracomm:
    """Send a message to this process itself, on the communicator that is returned."""
    itself = ITSELF.get()
    _sent[:] = [(request, kept) for request, kept in _sent if not request.Test()]
    _sent.append((itself.Isend(spec, 0), spec))
    return itself


def receive_object(probed: ProbedMessage, status: MPI.Status | None = None) -> Any:
    """Receive a message that turned out to be a Python object."""
    data = np.empty(probed.nbytes, np.uint8)
    MPI.Message.Recv(probed.message, [data, MPI.BYTE], status)
    probed.set_origin(status)
    return MPI.pickle.loads(data.tobytes())


def ireceive_object(probed: ProbedMessage) -> MPI.Request:
    """Return a request for the same."""
    data = np.empty(probed.nbytes, np.uint8)
    MPI.Message.Recv(probed.message, [data, MPI.BYTE])
    with LOCK:
        request = _begin_to_send([data, MPI.BYTE]).irecv(bytearray(probed.nbytes), 0)
    return SentToItself(request, probed.source, probed.tag)
