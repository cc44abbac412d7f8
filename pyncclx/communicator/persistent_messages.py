"""Persistent sends and receives of a communicator: device arrays by kernels, host arrays by mpi4py."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from .. import events
from ..arrays.places import on_host
from ..messages.base import MessageBase
from ..messages.host_persistent import receive_init
from ..messages.partitioned_receive import PartitionedReceive
from ..messages.partitioned_send import PartitionedSend
from ..messages.persistent import PersistentMessage
from ..messages.persistent_receive import PersistentReceive
from ..messages.persistent_send import PersistentSend
from ..messages.side import Side
from ..requests.partitioned import PartitionedRequest
from ..requests.persistent import Prequest
from .methods import or_staged


class PersistentMessages(MessageBase):
    """Persistent messages with device arrays.

    A started request sends or receives one message, as `Isend` and `Irecv` do, and may meet any other. What `Startall`
    starts takes one launch, and so does what `Waitall` waits for. In a graph two requests meet that have met before,
    without the host; all that is started together takes one launch.
    """

    @or_staged
    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Prepare to send a message to a rank again and again. As mpi4py's `Send_init`.

        Start it once, and wait for it, before it is captured in a graph; what is started in a capture must be waited
        for in the capture. Keep the request as long as the graph.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int

        Returns
        -------
        Prequest

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            What `Isend` raises. `Start` and `Startall` raise NotSupported in a capture if the message met no persistent
            receive before.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> requests = [comm.Recv_init(comm.Alloc(4), 0), comm.Send_init(comm.Alloc(4), 0)]
        >>> pyncclx.Prequest.Startall(requests)
        >>> pyncclx.Request.Waitall(requests)
        True
        """
        if on_host(buf):
            return super().Send_init(buf, dest, tag)
        return _request(PersistentSend(self, "Send_init", Side(buf, dest, tag)))

    @or_staged
    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """As `Send_init`; the request is over when the message has been matched."""
        if on_host(buf):
            return cast(MPI.Prequest, super().Ssend_init(buf, dest, tag))
        return _request(PersistentSend(self, "Ssend_init", Side(buf, dest, tag)))

    @or_staged
    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """As `Send_init`: that the receive has been started is of no use."""
        if on_host(buf):
            return cast(MPI.Prequest, super().Rsend_init(buf, dest, tag))
        return _request(PersistentSend(self, "Rsend_init", Side(buf, dest, tag)))

    @or_staged
    def Recv_init(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Prequest:
        """Prepare to receive a message again and again. As mpi4py's `Recv_init`; see `Send_init`.

        In a graph it receives from the request that it met last before the capture. Wildcards cannot be captured.
        """
        if on_host(buf):
            return receive_init(self, cast(Any, super().Recv_init(buf, source, tag)), buf)
        return _request(PersistentReceive(self, "Recv_init", Side(buf, source, tag)))

    @or_staged
    def Psend_init(
        self, buf: Any, partitions: int, dest: int, tag: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Prepare to send a message in parts, each when it is ready. As mpi4py's `Psend_init`; not collective.

        It meets the `Precv_init` of the receiver that has as many before it with this tag. Both may divide the same
        bytes differently. Partitions are stored in the receiver's array, by `Pready` or by kernels of the program's
        own, so they can be sent in a graph, too: capture `Start`, the kernel, and `Wait`.

        Parameters
        ----------
        buf : array or buffer spec
            A count in a spec is that of one partition.
        partitions : int
        dest, tag : int
        info : MPI.Info
            Not used.

        Returns
        -------
        PartitionedRequest

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            What `Isend` raises; and for elements with gaps between them. At `Wait` and `pointer`, on both ranks:
            NotSupported if they are on different nodes; MPI.Exception, of class ERR_TRUNCATE, if their arrays have
            different lengths.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x, y = comm.Alloc(6), comm.Alloc(6)
        >>> receive, send = comm.Precv_init(y, 2, 0, tag=7), comm.Psend_init(x, 3, 0, tag=7)
        >>> pyncclx.Prequest.Startall([receive, send])
        >>> send.Pready_list([2, 0, 1])
        >>> pyncclx.Request.Waitall([receive, send])
        True
        """
        if on_host(buf):
            return super().Psend_init(buf, partitions, dest, tag, info)
        return _partitioned(PartitionedSend(self, "Psend_init", Side(buf, dest, tag), partitions))

    @or_staged
    def Precv_init(
        self,
        buf: Any,
        partitions: int,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Prepare to receive a message in parts. As mpi4py's `Precv_init`; see `Psend_init`.

        Source and tag must be given, as MPI has it.
        """
        if on_host(buf):
            return super().Precv_init(buf, partitions, source, tag, info)
        return _partitioned(PartitionedReceive(self, "Precv_init", Side(buf, source, tag), partitions))


def _partitioned(work: PartitionedSend | PartitionedReceive) -> PartitionedRequest:
    request = PartitionedRequest(work)
    request.emits(work.name, events.NATIVE, work.nbytes)
    return request


def _request(work: PersistentMessage) -> Prequest:
    request = Prequest(work)
    request.emits(work.name, events.NATIVE, work.nbytes)
    return request
