"""Fetch a device array's data into a host array that receives the message."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays import datatypes
from ...arrays.buffers import Buffer
from ...backends import Event
from ...errors import PeerTimeout
from ...recording.failures import noted
from ...requests.open_receives import LOCK
from ..base import MessageBase
from ..envelope import ENVELOPE_NBYTES, INLINE, SHORT_NBYTES, Envelope, inline_nbytes
from ..memory.opened import can_read
from ..plan import plan_of
from ..receive import Incoming
from .memory import HostMemory


class HostFetch:
    """A fetch of one message's data, on a stream of the library.

    The fetch begins when the sender's data can be read. It does not run on a stream of the program, because the
    program's streams may wait for a peer that waits for this message. Several threads may call `is_over`. After an
    exception, the next call continues the fetch.

    Attributes
    ----------
    is_inline : bool
        Whether MPI transfers the data, after the envelope.
    """

    _incoming: Incoming | None = None
    _copy: Any = None  # device memory that the data is received into
    _end: Event | None = None  # recorded after the copy to the host; None before
    _is_beginning = False

    def __init__(self, comm: MessageBase, memory: HostMemory, envelope: Envelope) -> None:
        self._endpoint, self._memory, self._envelope = comm.lasting_endpoint, memory, envelope
        self.is_inline = envelope.transport == INLINE
        length = SHORT_NBYTES if envelope.is_short else ENVELOPE_NBYTES
        if self.is_inline:
            length = inline_nbytes(envelope.nbytes)
        self._message_nbytes = min(length, memory.nbytes)
        self._message = memory.read(self._message_nbytes)
        self._stream = self._endpoint.context.host_array_stream
        # If MPI has truncated the message, the memory has only a part of the data behind the envelope.
        nbytes = min(envelope.nbytes, memory.nbytes - ENVELOPE_NBYTES * self.is_inline)
        self._data = np.empty(nbytes, np.uint8)
        self._has_room = nbytes == envelope.nbytes

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes."""
        return self._data.nbytes

    def has_ended(self) -> bool:
        """Return whether the sender can reuse its memory; see `progress.Kept`."""
        return self.is_over()

    def is_of(self, envelope: Envelope) -> bool:
        """Return whether this fetches the message of an envelope."""
        return self._envelope == envelope

    def is_over(self) -> bool:
        """Return whether `finish` would return immediately; begin if the data is readable."""
        with LOCK:
            if self._end is None:
                # A launch may progress other messages, and so call this function again.
                if self._is_beginning:
                    return False
                if self._incoming is None and not can_read(self._endpoint, self._envelope):
                    return self._failure() is not None
                self._is_beginning = True
                try:
                    self._begin()
                finally:
                    self._is_beginning = False
        return self._end is not None and self._end.is_over()

    def _failure(self) -> Exception | None:
        self._endpoint.check()
        return self._endpoint.failure_of(self._envelope.source, "Recv")

    def _begin(self) -> None:
        """Enqueue the receive and the copy to the host, or their remaining steps."""
        device, nbytes = self._endpoint.device, self._data.nbytes
        if self._incoming is None:
            self._prepare()
        assert self._incoming is not None
        if not self._incoming.has_arrived:
            status = MPI.Status()
            status.Set_source(self._envelope.source)
            status.Set_elements(MPI.BYTE, self._message_nbytes)
            self._incoming.accept(self._message, status)
        elif not self._incoming.launched:
            self._incoming.launch()
        if nbytes and self._has_room:
            device.copy(MPI.Get_address(self._data), self._copy.address, nbytes, self._stream)
        end = device.event()
        end.record(self._stream)
        self._end = end

    def _prepare(self) -> None:
        """Create the receive into device memory."""
        endpoint, source, nbytes = self._endpoint, self._envelope.source, self._data.nbytes
        copy = endpoint.device.allocate_temporary(max(nbytes, 1), self._stream)
        buffer = Buffer(copy.address, nbytes, datatypes.TABLE["uint8"], (nbytes,), False, None, copy)
        incoming = Incoming()
        incoming.begin(None, endpoint, plan_of(endpoint, "Recv", buffer, source, MPI.ANY_TAG), None, self._stream)
        self._copy, self._incoming = copy, incoming

    def finish(self, status: MPI.Status | None) -> None:
        """Wait for the data, copy it into the array, and set a status to its length."""
        # After an error too, clear the envelope from the array.
        data = self._data[:0]
        try:
            self._wait()
            data = self._data
        finally:
            self._memory.replace(self._message_nbytes, data)
        self.fill(status)

    def abandon(self) -> None:
        """Read the data although no call waits: the sender waits to reuse its memory."""
        self._endpoint.context.receives.pending_sends.keep_message(self)
        self._memory.replace(self._message_nbytes, self._data[:0])

    def _wait(self) -> None:
        deadline = time.monotonic() + self._endpoint.timeout_s
        while not self.is_over():
            if time.monotonic() > deadline:
                raise noted(self._timeout())
            os.sched_yield()
        if self._incoming is None:
            raise noted(self._failure() or self._timeout())
        # This raises errors of the stream.
        self._endpoint.device.synchronize(self._stream)
        self._incoming.finish(self._stream)

    def fill(self, status: MPI.Status | None) -> None:
        """Set a status to the length of the message's data."""
        if status is not None:
            status.Set_elements(MPI.BYTE, self._envelope.nbytes)

    def _timeout(self) -> Exception:
        envelope = self._envelope
        return PeerTimeout("Recv", envelope.clock, self._endpoint.rank, envelope.source, 1, 0)


def complete(fetch: HostFetch, status: MPI.Status | None) -> None:
    """Finish a fetch; after an exception, still read the data for the sender."""
    try:
        fetch.finish(status)
    except BaseException:
        fetch.abandon()
        raise
