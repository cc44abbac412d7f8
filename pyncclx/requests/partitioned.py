"""Persistent requests of partitioned messages of device arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .persistent import Prequest


class PartitionedRequest(Prequest):
    """Persistent request of a partitioned message, from `Psend_init` or `Precv_init`.

    It is an `mpi4py.MPI.Prequest` on device arrays. `Start` begins a round after the work on the current stream, and
    returns at once. Each partition is sent once in a round, by `Pready` or by your own kernel with `pointer`. `Wait`
    makes the stream that is current at that time wait until all partitions are sent or received.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(6), comm.Alloc(6)
    >>> receive = comm.Precv_init(y, 2, 0, tag=7)
    >>> send = comm.Psend_init(x, 3, 0, tag=7)
    >>> pyncclx.Prequest.Startall([receive, send])
    >>> send.Pready_range(0, 2)
    >>> pyncclx.Request.Waitall([receive, send])
    True
    """

    #: The work also has `pointer`, `ready` and `arrived`.
    _work: Any

    @property
    def pointer(self) -> int:
        """64-bit integer that identifies this end of the message in your own kernels.

        Pass it to functions such as ``pyncclx_pready_block``. It is valid as long as the request, and 0 if the other
        end is MPI.PROC_NULL. At the first use the host waits until the other end reads its own pointer or is started.

        Raises
        ------
        NotSupported
            If the sender cannot map the receiver's array, which must be from `comm.Alloc` on the host device; or if the
            ranks are on different nodes.
        PeerTimeout, RankFailed
            If the other end neither read its pointer nor was started in time.
        """
        return int(self._work.pointer)

    def Pready(self, partition: int) -> None:
        """Send a partition after the work on the current stream, like mpi4py's `Pready`.

        Raises
        ------
        MPI.Exception
            Class ERR_ARG, if there is no such partition or it has been sent in this round; ERR_REQUEST, if the request
            has not been started, or is a receive's.
        """
        self._work.ready("Pready", (partition,))

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Send the partitions from `partition_low` to `partition_high` in one launch.

        Both are included. It works like mpi4py's `Pready_range`.

        Raises
        ------
        MPI.Exception
            Class ERR_ARG, if a partition does not exist or has been sent in this round; ERR_REQUEST, if the request has
            not been started, or is a receive's.
        """
        self._work.ready("Pready_range", range(partition_low, partition_high + 1))

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Send the listed partitions in one launch, like mpi4py's `Pready_list`.

        Raises
        ------
        MPI.Exception
            Class ERR_ARG, if a partition does not exist or has been sent in this round; ERR_REQUEST, if the request has
            not been started, or is a receive's.
        """
        self._work.ready("Pready_list", partitions)

    def Parrived(self, partition: int) -> bool:
        """Return whether a partition has arrived, like mpi4py's `Parrived`.

        If it has, subsequent work on the current stream can read it.

        Raises
        ------
        MPI.Exception
            Class ERR_ARG, if there is no such partition; ERR_REQUEST, if the request is a send's.
        NotSupported
            If the request was started in a graph.
        """
        return bool(self._work.arrived(partition))
