"""Persistent requests of partitioned messages of device arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .persistent import Prequest
from .work import Startable


class Partitioned(Startable):
    """The partitioned message that a request stands for."""

    @property
    def pointer(self) -> int:
        """The address of this end in device memory."""
        raise NotImplementedError

    def ready(self, method: str, partitions: Iterable[int]) -> None:
        """Send some partitions."""
        raise NotImplementedError

    def arrived(self, partition: int) -> bool:
        """Return whether a partition has come."""
        raise NotImplementedError


class PartitionedRequest(Prequest):
    """An `mpi4py.MPI.Prequest` of a partitioned message of device arrays: what `Psend_init` and `Precv_init` return.

    `Start` begins a round after what the current stream has, and waits for nothing. Each partition is sent once in a
    round: by `Pready`, or by a kernel of the program's own, which is given `pointer`. `Wait` makes the stream that is
    current wait until all are over.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(6), comm.Alloc(6)
    >>> receive, send = comm.Precv_init(y, 2, 0, tag=7), comm.Psend_init(x, 3, 0, tag=7)
    >>> pyncclx.Prequest.Startall([receive, send])
    >>> send.Pready_range(0, 2)
    >>> pyncclx.Request.Waitall([receive, send])
    True
    """

    _work: Partitioned

    @property
    def pointer(self) -> int:
        """This end of the message for kernels of the program's own, a 64-bit integer (``pyncclx_pready_block`` …).

        0 if the other end is MPI.PROC_NULL. The first time, the host waits for the other end, whose program must have
        asked for its pointer, too, or have started it. It lasts as long as the request.

        Raises
        ------
        NotSupported
            A sender cannot open the memory of the array that receives: on the host device it must be `comm.Alloc`'s. Or
            the ranks are on different nodes.
        PeerTimeout, RankFailed
            The other end did not come.
        """
        return self._work.pointer

    def Pready(self, partition: int) -> None:
        """Send a partition as it is after what the current stream has. As mpi4py's `Pready`.

        Raises
        ------
        MPI.Exception
            Class ERR_ARG, if there is no such partition or it has been sent in this round; ERR_REQUEST, if the request
            has not been started, or receives.
        """
        self._work.ready("Pready", (partition,))

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Send partitions from one to another, both included, by one launch. As mpi4py's `Pready_range`."""
        self._work.ready("Pready_range", range(partition_low, partition_high + 1))

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Send some partitions by one launch. As mpi4py's `Pready_list`."""
        self._work.ready("Pready_list", partitions)

    def Parrived(self, partition: int) -> bool:
        """Whether a partition has come, for what the current stream does next. As mpi4py's `Parrived`.

        Raises
        ------
        MPI.Exception
            Class ERR_ARG, if there is no such partition; ERR_REQUEST, if the request sends.
        NotSupported
            The request was started in a graph.
        """
        return self._work.arrived(partition)
