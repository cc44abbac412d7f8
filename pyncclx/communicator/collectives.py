"""Barrier and data movement: kernels for device arrays, mpi4py for host arrays."""

from __future__ import annotations

from typing import Any

from ..collectives.allgather import allgather, allgatherv
from ..collectives.alltoall import alltoall
from ..collectives.alltoallv import alltoallv
from ..collectives.alltoallw import alltoallw
from ..collectives.barrier import barrier
from ..collectives.bcast import bcast
from ..collectives.rooted import gather, gatherv, scatter, scatterv
from ..launch.run import by_kernel
from ..messages.host.dropped import DROPPED, serve_dropped
from ..team.base import IntraBase
from ..team.state import state_of
from .methods import nonblocking, or_staged, persistent


class Collectives(IntraBase):
    """Barrier and collectives that move data: blocking, nonblocking and persistent."""

    def Barrier(self, *, device: bool = False, algorithm: str | None = None) -> None:
        """Synchronise the ranks, on the host or on their current streams.

        Parameters
        ----------
        device : bool
            False: the host waits for all ranks, as in MPI. True: the current stream waits for all ranks' current
            streams.
        algorithm : {"numba"}, optional
            "numba": use the kernel written in Python.
        """
        state = state_of(self)
        if device or algorithm is not None or state.checking or state.background is not None:
            if by_kernel(self, barrier, device=device, algorithm=algorithm):
                return
        elif (calls := state.calls(self)) is not None:
            calls.on_host("Barrier")
        super().Barrier()
        if DROPPED:
            serve_dropped()

    Ibarrier = nonblocking(barrier)
    Barrier_init = persistent(barrier)

    @or_staged
    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None) -> None:
        """Send root's data to every rank.

        Parameters
        ----------
        buf : array or buffer spec, any datatype, the same number of bytes on every rank
        root : int
        algorithm : {"direct", "two_shot_lines", "chain_lines", "chain", "copy_engine"}, optional
            Chosen by length if omitted. "copy_engine" is for buffers in windows; see `sm_free`.
        """
        if not by_kernel(self, bcast, buf, root, algorithm=algorithm):
            super().Bcast(buf, root)

    Ibcast = nonblocking(bcast)
    Bcast_init = persistent(bcast)

    @or_staged
    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather all ranks' data at root, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,), any datatype; MPI.IN_PLACE at root keeps its block of recvbuf
        recvbuf : array or buffer spec, shape (size * count,), at root; not used elsewhere
        root : int
        """
        if not by_kernel(self, gather, sendbuf, recvbuf, root):
            super().Gather(sendbuf, recvbuf, root)

    Igather = nonblocking(gather)
    Gather_init = persistent(gather)

    @or_staged
    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather all ranks' data at root, in blocks of any length.

        Parameters
        ----------
        sendbuf : array or buffer spec, any datatype; MPI.IN_PLACE at root keeps its block of recvbuf
        recvbuf : ``[array, counts]``, ``[array, (counts, displs)]``, … at root; not used elsewhere
            Counts and displacements in elements, on the host. Elements that no block covers keep their values. If a
            rank sends more than its count, root's next call raises MPI.Exception of class ERR_TRUNCATE.
        root : int
        """
        if not by_kernel(self, gatherv, sendbuf, recvbuf, root):
            super().Gatherv(sendbuf, recvbuf, root)

    Igatherv = nonblocking(gatherv)
    Gatherv_init = persistent(gatherv)

    @or_staged
    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send block r of root's data to rank r, for all ranks.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,), any datatype, at root; not used elsewhere
        recvbuf : array or buffer spec, shape (count,); MPI.IN_PLACE at root leaves root's block where it is
        root : int
        """
        if not by_kernel(self, scatter, sendbuf, recvbuf, root):
            super().Scatter(sendbuf, recvbuf, root)

    Iscatter = nonblocking(scatter)
    Scatter_init = persistent(scatter)

    @or_staged
    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send each rank its block of root's data; blocks may have any length.

        Parameters
        ----------
        sendbuf : ``[array, counts]``, ``[array, (counts, displs)]``, … at root; not used elsewhere
            Any datatype; counts and displacements in elements, on the host.
        recvbuf : array or buffer spec; MPI.IN_PLACE at root leaves root's block where it is
            If the block is longer than recvbuf, a later call on this rank raises MPI.Exception of class ERR_TRUNCATE.
        root : int
        """
        if not by_kernel(self, scatterv, sendbuf, recvbuf, root):
            super().Scatterv(sendbuf, recvbuf, root)

    Iscatterv = nonblocking(scatterv)
    Scatterv_init = persistent(scatterv)

    @or_staged
    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None) -> None:
        """Gather all ranks' data at every rank, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,), any datatype; MPI.IN_PLACE reads this rank's block of recvbuf
        recvbuf : array or buffer spec, shape (size * count,)
        algorithm : {"copy_engine", "numba"}, optional
            "copy_engine": for a recvbuf in a window; see `sm_free`. "numba": the kernel written in Python.
        transform : pyncclx.Transform, optional
            Applied to each element before it is sent. The arrays may then differ in type, but not in length.
        """
        if not by_kernel(self, allgather, sendbuf, recvbuf, algorithm=algorithm, transform=transform):
            super().Allgather(sendbuf, recvbuf)

    Iallgather = nonblocking(allgather)
    Allgather_init = persistent(allgather)

    @or_staged
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather all ranks' data at every rank, in blocks of any length.

        Parameters
        ----------
        sendbuf : array or buffer spec, any datatype; MPI.IN_PLACE reads this rank's block of recvbuf
        recvbuf : ``[array, counts]``, ``[array, (counts, displs)]``, …
            Counts and displacements in elements, on the host. All ranks pass the same counts. Elements that no block
            covers keep their values.
        """
        if not by_kernel(self, allgatherv, sendbuf, recvbuf):
            super().Allgatherv(sendbuf, recvbuf)

    Iallgatherv = nonblocking(allgatherv)
    Allgatherv_init = persistent(allgatherv)

    @or_staged
    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None) -> None:
        """Send block r of sendbuf to rank r, and receive block s of recvbuf from rank s.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,), any datatype; MPI.IN_PLACE sends and overwrites recvbuf
        recvbuf : array or buffer spec, shape (size * count,)
        algorithm : {"copy_engine", "numba"}, optional
            "copy_engine": for a recvbuf in a window, and not in place; see `sm_free`. "numba": the kernel in Python.
        transform : pyncclx.Transform, optional
            Applied to each element before it is sent. The arrays may then differ in type, but not in length.
        """
        if not by_kernel(self, alltoall, sendbuf, recvbuf, algorithm=algorithm, transform=transform):
            super().Alltoall(sendbuf, recvbuf)

    Ialltoall = nonblocking(alltoall)
    Alltoall_init = persistent(alltoall)

    @or_staged
    def Alltoallv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        layout: str | None = None,
        capacity: int | None = None,
        total: Any = None,
        status: Any = None,
        overflow: str | None = None,
        segments: Any = None,
        algorithm: str | None = None,
    ) -> None:
        """Send each rank a block of rows, with counts on the host or on the device.

        With counts on the host the call takes MPI's ``[array, counts]``, ``[array, (counts, displs)]`` and so on, in
        elements.

        The dynamic form reads counts when the kernel runs, and stores the counts of the received rows:
        ``comm.Alltoallv([sendbuf, counts], [recvbuf, recv_counts])``. It is used when counts are device arrays or
        `layout` is given. On the host device, counts in NumPy arrays fit both forms, so give `layout` there.
        Collective: a rank with nothing to send must call it, too. The parameters below describe the dynamic form.

        Parameters
        ----------
        sendbuf : ``[array, counts]`` or ``[array, (counts, displs)]``
            A row is array[i]: what one index of the first dimension selects. counts and displs: device arrays, shape
            (size,), int64, in rows; without displs the rows for rank 0, 1, … follow each other.
        recvbuf : array, ``[array, counts]`` or ``[array, (counts, displs)]``
            Its number of rows is the capacity; rows that do not fit are dropped. counts and displs are outputs: how
            many rows from each rank were stored, and the index of the first of them.
        layout : {"packed", "slots", "sender", "placed"}, default "packed"
            "packed": the rows of rank 0, 1, … follow each other. "slots": recvbuf has the shape (size, capacity, …),
            and the rows of rank s are stored in recvbuf[s] from its beginning. "sender": recvbuf has the shape of
            "slots", and each row of rank s has the same index in recvbuf[s] as in the sendbuf of rank s. "placed": the
            displs of recvbuf are an input: where the rows of each rank begin. Rows of different ranks must not overlap.
            With the displs of an earlier sendbuf, the rows of that call return to their original positions.
        capacity : int, optional
            Number of rows of recvbuf, or of each slot, that may be used.
        total : device array, shape (1,), int64, optional
            Output: how many rows were stored.
        status : device array, shape (size,), int64, optional
            Output: how many rows of each rank were dropped.
        overflow : {"raise", "drop"}, optional
            "raise": after rows were dropped, the next call on this communicator raises CapacityExceeded.
            "drop": no error. Default: "drop" if `status` is given, else "raise".
        segments : (lengths, ids) or (lengths, ids, all_lengths), optional
            sendbuf is divided into segments; segment i has lengths[i] rows. All ranks have the same number of segments.
            Each segment is sent to any number of ranks, or to none. counts[r] segments are sent to rank r; `ids` lists
            the indices of the segments for rank 0, then of those for rank 1, and so on. They arrive in ascending order
            of index; with ``layout="sender"``, at the sender's positions. `all_lengths` is an output of shape (size,
            segments): the lengths on all ranks. All are device arrays of int64.
        algorithm : {"numba"}, optional
            "numba": use the kernel written in Python.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> rows, counts = np.arange(6.0).reshape(3, 2), np.array([2])
        >>> received, stored = np.zeros((4, 2)), np.zeros(1, "i8")
        >>> comm.Alltoallv([rows, counts], [received, stored], layout="packed")
        >>> stored.tolist(), received[:2].tolist()
        ([2], [[0.0, 1.0], [2.0, 3.0]])
        """
        if not by_kernel(
            self,
            alltoallv,
            sendbuf,
            recvbuf,
            layout=layout,
            capacity=capacity,
            total=total,
            status=status,
            overflow=overflow,
            segments=segments,
            algorithm=algorithm,
        ):
            super().Alltoallv(sendbuf, recvbuf)

    Ialltoallv = nonblocking(alltoallv)
    Alltoallv_init = persistent(alltoallv)

    @or_staged
    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange a block with each rank, each block with its own datatype.

        Parameters
        ----------
        sendbuf : ``[array, types]``, ``[array, (counts, displs), types]`` or ``[array, counts, displs, types]``
            A datatype for each rank, derived or not; displacements in bytes, on the host. MPI.IN_PLACE sends and
            overwrites the blocks of recvbuf; the two blocks that a pair of ranks exchanges must then be equally long.
        recvbuf : the same forms
            If a rank sends more than fits into its block, a later call on this rank raises MPI.Exception of class
            ERR_TRUNCATE.
        """
        if not by_kernel(self, alltoallw, sendbuf, recvbuf):
            super().Alltoallw(sendbuf, recvbuf)

    Ialltoallw = nonblocking(alltoallw)
    Alltoallw_init = persistent(alltoallw)
