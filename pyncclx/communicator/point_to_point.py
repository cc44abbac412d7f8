"""Sends and receives: kernels move device arrays, mpi4py moves host arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

from mpi4py import MPI

from .. import events
from ..messages import calls, exchange
from ..messages.host import receive as host_receive
from ..messages.host.memory import gathered
from ..messages.plan import NOTHING, planned, stream_of
from ..messages.progress.pending_sends import going_on
from ..requests.status import check_status
from .methods import or_staged
from .persistent_messages import PersistentMessages
from .probes import is_divided, is_probed, probed_message


class PointToPoint(PersistentMessages):
    """Messages with device arrays.

    MPI matches messages by communicator, source and tag, in order, with wildcards. No call is collective. A receive
    returns when its message is matched, a send when MPI has accepted the message; the current stream moves the data. A
    short message is copied, so subsequent work on the sender's stream may write to the buffer. For a long message the
    sender's stream waits until the data has been received. Messages are matched on the host, so these calls cannot be
    captured in a graph. Persistent messages can be captured: see `Send_init`.
    """

    @or_staged
    @calls.sending
    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a message to a rank, as mpi4py's `Send` does.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid, or the stream is being captured. Nothing is sent.
        """
        return super().Send(buf, dest, tag)

    @or_staged
    @calls.sending
    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a message, and return when a receive has matched it.

        Works like mpi4py's `Ssend`, and raises what `Send` raises.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int
        """
        return super().Ssend(buf, dest, tag)

    @or_staged
    @calls.sending
    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send a message, and return its request, as mpi4py's `Isend` does.

        The stream does not wait. Do not write to `buf` until you have waited for the request.
        The call raises what `Send` raises.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int
        """
        return super().Isend(buf, dest, tag)

    @or_staged
    @calls.sending
    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send a message; its request completes once a receive has matched it.

        Works like mpi4py's `Issend`. The stream does not wait. Do not write to `buf` until you have waited for the
        request. The call raises what `Send` raises.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int
        """
        return super().Issend(buf, dest, tag)

    @or_staged
    @calls.receiving
    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        """Receive a message, as mpi4py's `Recv` does.

        The host waits until the message is matched; the current stream waits for the data.

        Parameters
        ----------
        buf : array or buffer spec, any datatype, as long as the message or longer
        source, tag : int
        status : MPI.Status, optional
            Output: source, tag and length.

        Raises
        ------
        MPI.Exception
            Class ERR_TRUNCATE if the message is longer than buf. The message is then lost.
        """
        with probed_message(self, source, tag) as found:
            if found is not None:
                return found.Recv(buf, status)
        return host_receive.receive(self, super().Recv, (buf, source, tag), buf, status)

    @or_staged
    @calls.ireceiving
    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """Begin to receive a message, and return its request, as mpi4py's `Irecv` does.

        Neither the host nor the stream waits. The request's `Wait` makes the stream that is then current wait for the
        data. `Wait` raises MPI.Exception of class ERR_TRUNCATE if the message is longer than buf.

        Parameters
        ----------
        buf : array or buffer spec, any datatype, as long as the message or longer
        source, tag : int

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid, or the stream is being captured.
        """
        with probed_message(self, source, tag) as found:
            if found is not None:
                return found.Irecv(buf)
        return host_receive.ireceive(self, partial(super().Irecv, source=source, tag=tag), buf)

    @or_staged
    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send a message while receiving another one, as mpi4py's `Sendrecv` does.

        The host waits until the received message is matched; the current stream waits for both messages.

        Parameters
        ----------
        sendbuf, recvbuf : array or buffer spec, any datatype
        dest, sendtag, source, recvtag : int
        status : MPI.Status, optional
            Output: source, tag and length of the received message.

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid, or the stream is being captured; nothing is sent. Class ERR_TRUNCATE if the
            received message is longer than recvbuf.
        """
        if status is not None:
            check_status(status)
        began = events.now() if events.listeners else None
        sending = planned(self, "Sendrecv", sendbuf, dest, sendtag, "sendbuf", writable=False)
        receiving = planned(self, "Sendrecv", recvbuf, source, recvtag, "recvbuf", writable=True)
        if sending is not None and receiving is not None:
            return exchange.exchange(self, "Sendrecv", began, (sending, sendbuf), (receiving, recvbuf), status)
        if sending is not receiving or is_probed(self, source, recvtag):
            self._check_both("Sendrecv", (sendbuf, dest, sendtag), (recvbuf, source, recvtag))
            return self._receive_beside(self.Isend(sendbuf, dest, sendtag), recvbuf, source, recvtag, status)
        arguments = sendbuf, dest, sendtag, recvbuf, source, recvtag
        return host_receive.receive(self, super().Sendrecv, arguments, recvbuf, status)

    @or_staged
    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        """Begin to send a message and to receive another one; return one request for both.

        Works like mpi4py's `Isendrecv`. The request's status is that of the receive. `Wait` raises MPI.Exception of
        class ERR_TRUNCATE if the received message is longer than recvbuf. The call itself raises what `Send` raises.

        Parameters
        ----------
        sendbuf, recvbuf : array or buffer spec, any datatype
        dest, sendtag, source, recvtag : int
        """
        began = events.now() if events.listeners else None
        sending = planned(self, "Isendrecv", sendbuf, dest, sendtag, "sendbuf", writable=False)
        receiving = planned(self, "Isendrecv", recvbuf, source, recvtag, "recvbuf", writable=True)
        if sending is not None and receiving is not None:
            return exchange.iexchange(self, "Isendrecv", began, (sending, sendbuf), (receiving, recvbuf))
        if sending is not receiving or is_divided(self, source, recvtag):
            self._check_both("Isendrecv", (sendbuf, dest, sendtag), (recvbuf, source, recvtag))
            request = self.Irecv(recvbuf, source, recvtag)
            return exchange.together(request, self.Isend(sendbuf, dest, sendtag))
        begin = partial(super().Isendrecv, sendbuf, dest, sendtag, source=source, recvtag=recvtag)
        return host_receive.ireceive(self, begin, recvbuf)

    @or_staged
    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send a copy of a buffer while receiving into it.

        Works like mpi4py's `Sendrecv_replace`, and raises what `Sendrecv` raises.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, sendtag, source, recvtag : int
        status : MPI.Status, optional
            Output: source, tag and length of the received message.
        """
        if status is not None:
            check_status(status)
        began = events.now() if events.listeners else None
        plan = planned(self, "Sendrecv_replace", buf, source, recvtag, writable=True)
        if plan is not None:
            copy = exchange.copied(self, "Sendrecv_replace", buf, dest, sendtag)
            return exchange.exchange(self, "Sendrecv_replace", began, copy, (plan, buf), status)
        if is_probed(self, source, recvtag):
            self._check_both("Sendrecv_replace", (buf, dest, sendtag), (buf, source, recvtag))
            return self._receive_beside(self._isend_copy(buf, dest, sendtag), buf, source, recvtag, status)
        arguments = buf, dest, sendtag, source, recvtag
        return host_receive.receive(self, super().Sendrecv_replace, arguments, buf, status)

    @or_staged
    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG
    ) -> MPI.Request:
        """Begin to send a copy of a buffer and to receive into it; return one request.

        Works like mpi4py's `Isendrecv_replace`. The request's status is that of the receive. `Wait` raises
        MPI.Exception of class ERR_TRUNCATE if the received message is longer than buf. The call itself raises what
        `Send` raises.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, sendtag, source, recvtag : int
        """
        began = events.now() if events.listeners else None
        plan = planned(self, "Isendrecv_replace", buf, source, recvtag, writable=True)
        if plan is not None:
            copy = exchange.copied(self, "Isendrecv_replace", buf, dest, sendtag)
            return exchange.iexchange(self, "Isendrecv_replace", began, copy, (plan, buf))
        if is_divided(self, source, recvtag):
            self._check_both("Isendrecv_replace", (buf, dest, sendtag), (buf, source, recvtag))
            sending = self._isend_copy(buf, dest, sendtag)
            return exchange.together(self.Irecv(buf, source, recvtag), sending)
        begin = partial(super().Isendrecv_replace, dest=dest, sendtag=sendtag, source=source, recvtag=recvtag)
        return host_receive.ireceive(self, begin, buf)

    def _check_both(self, operation: str, sending: tuple[Any, int, int], receiving: tuple[Any, int, int]) -> None:
        """Check the arguments of a send and a receive before either begins."""
        (_, dest, sendtag), (_, source, recvtag) = sending, receiving
        self.endpoint.check_send(operation, dest, sendtag)
        self.endpoint.check_receive(operation, source, recvtag)
        for side, writable, prepare in ((sending, False, MPI.Comm.Send_init), (receiving, True, MPI.Comm.Recv_init)):
            plan = planned(self, operation, *side, writable=writable)
            if plan is None:
                # mpi4py raises its own errors for host arrays.
                prepare(MPI.COMM_SELF, side[0], 0, 0).Free()
            elif plan is not NOTHING:
                stream_of(self.endpoint, plan)

    def _receive_beside(self, sending: MPI.Request, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
        """Receive a message while a send is in progress, then wait for the send."""
        try:
            self.Recv(buf, source, tag, status)
        finally:
            sending.Wait()

    def _isend_copy(self, buf: Any, dest: int, tag: int) -> MPI.Request:
        """Begin to send a copy of a host array, which may be written to immediately."""
        return going_on(MPI.Comm.Isend(self, [gathered(buf), MPI.PACKED], dest, tag))
