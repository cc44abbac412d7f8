"""Persistent messages: kernels move device arrays, mpi4py moves host arrays."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from .. import events
from ..arrays.places import on_host
from ..messages.base import MessageBase
from ..messages.host.persistent import receive_init
from ..messages.partitioned.base import PartitionedMessage
from ..messages.partitioned.receive import PartitionedReceive
from ..messages.partitioned.send import PartitionedSend
from ..messages.persistent.base import PersistentMessage, PersistentReceive, PersistentSend
from ..requests.partitioned import PartitionedRequest
from ..requests.persistent import Prequest
from .methods import or_staged


class PersistentMessages(MessageBase):
    """Persistent messages with device arrays.

    Each start sends or receives one message, which MPI matches with any other send or receive. `Startall` and `Waitall`
    launch one kernel for all their messages, also in a capture. In a CUDA graph the host does not match messages: a
    request communicates with the request that it matched last before the capture.
    """

    @or_staged
    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Return a request that sends a message at each start, like mpi4py's `Send_init`.

        To use the request in a graph, start it once and wait for it before the capture. In the capture, wait for each
        request that you start there. Keep the request as long as the graph.

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
            If an argument is not valid. In a capture, `Start` and `Startall` raise NotSupported if no persistent
            receive has matched the request before.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x, y = comm.Alloc(4), comm.Alloc(4)
        >>> requests = [comm.Recv_init(y, 0), comm.Send_init(x, 0)]
        >>> pyncclx.Prequest.Startall(requests)
        >>> pyncclx.Request.Waitall(requests)
        True
        """
        if on_host(buf):
            return super().Send_init(buf, dest, tag)
        return _request(PersistentSend(self, "Send_init", buf, dest, tag))

    @or_staged
    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Return a persistent request of a synchronous send.

        Works like mpi4py's `Ssend_init`: each send completes only when a receive has matched it. For graphs, see
        `Send_init`.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid. In a capture, `Start` and `Startall` raise NotSupported if no persistent
            receive has matched the request before.
        """
        if on_host(buf):
            return cast(MPI.Prequest, super().Ssend_init(buf, dest, tag))
        return _request(PersistentSend(self, "Ssend_init", buf, dest, tag))

    @or_staged
    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Return a persistent request of a send whose receive has already been started.

        Works like mpi4py's `Rsend_init`. On device arrays it is the same as `Send_init`.

        Parameters
        ----------
        buf : array or buffer spec, any datatype
        dest, tag : int

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid. In a capture, `Start` and `Startall` raise NotSupported if no persistent
            receive has matched the request before.
        """
        if on_host(buf):
            return cast(MPI.Prequest, super().Rsend_init(buf, dest, tag))
        return _request(PersistentSend(self, "Rsend_init", buf, dest, tag))

    @or_staged
    def Recv_init(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Prequest:
        """Return a request that receives a message at each start.

        Works like mpi4py's `Recv_init`.
        In a graph the request receives from the send that it matched last before the capture. So start it once and wait
        for it before you capture it, and wait for it in the capture. `MPI.ANY_SOURCE` cannot be captured.

        Parameters
        ----------
        buf : array or buffer spec, any datatype, as long as the message or longer
        source, tag : int

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid. In a capture, `Start` and `Startall` raise NotSupported if no persistent send
            has matched the request before, or source is MPI.ANY_SOURCE.
        """
        if on_host(buf):
            return receive_init(self, cast(Any, super().Recv_init(buf, source, tag)), buf)
        return _request(PersistentReceive(self, "Recv_init", buf, source, tag))

    @or_staged
    def Psend_init(
        self, buf: Any, partitions: int, dest: int, tag: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Return a request that sends a message in partitions, each when it is ready.

        Works like mpi4py's `Psend_init`. Not collective. The nth `Psend_init` to a rank with a tag matches that rank's
        nth `Precv_init` from this rank with the same tag. The two ranks may divide the same bytes into different
        partitions. `Pready`, or your own kernel, stores partitions in the receiver's array. So a graph can send them,
        too: capture `Start`, the kernel, and `Wait`.

        Parameters
        ----------
        buf : array or buffer spec
            The count in a spec is the number of elements of one partition.
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
            If an argument is not valid, or elements have gaps between them. `Wait` and `pointer` raise on both ranks:
            NotSupported if the ranks are on different nodes; MPI.Exception of class ERR_TRUNCATE if their arrays have
            different lengths.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x, y = comm.Alloc(6), comm.Alloc(6)
        >>> receive = comm.Precv_init(y, 2, 0, tag=7)
        >>> send = comm.Psend_init(x, 3, 0, tag=7)
        >>> pyncclx.Prequest.Startall([receive, send])
        >>> send.Pready_list([2, 0, 1])
        >>> pyncclx.Request.Waitall([receive, send])
        True
        """
        if on_host(buf):
            return super().Psend_init(buf, partitions, dest, tag, info)
        return _request(PartitionedSend(self, "Psend_init", buf, dest, tag, partitions))

    @or_staged
    def Precv_init(
        self,
        buf: Any,
        partitions: int,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Return a request that receives a message in partitions.

        Works like mpi4py's `Precv_init`. Not collective. The nth `Precv_init` from a rank with a tag matches that
        rank's nth `Psend_init` to this rank with the same tag. The two ranks may divide the same bytes into different
        partitions. `Parrived` returns whether a partition has arrived.

        Parameters
        ----------
        buf : array or buffer spec
            The count in a spec is the number of elements of one partition.
        partitions : int
        source, tag : int
            Required: MPI has no wildcards here.
        info : MPI.Info
            Not used.

        Returns
        -------
        PartitionedRequest

        Raises
        ------
        TypeError, ValueError, NotSupported, MPI.Exception
            If an argument is not valid, or elements have gaps between them. `Wait` and `pointer` raise on both ranks:
            NotSupported if the ranks are on different nodes; MPI.Exception of class ERR_TRUNCATE if their arrays have
            different lengths.
        """
        if on_host(buf):
            return super().Precv_init(buf, partitions, source, tag, info)
        return _request(PartitionedReceive(self, "Precv_init", buf, source, tag, partitions))


def _request(work: PersistentMessage | PartitionedMessage) -> Prequest:
    request = (PartitionedRequest if isinstance(work, PartitionedMessage) else Prequest)(work)
    request.emits(work.name, events.NATIVE, work.nbytes)
    return request
