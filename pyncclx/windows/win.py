"""MPI's one-sided communication for device arrays, by accesses over NVLink.

Locks and epochs are those of an underlying MPI window, with one word in each rank's host memory. Before each call that
ends an epoch, the host waits for the device, so that operations are complete when peers continue. Device arrays that
peers have not mapped, such as those of other nodes, have copies in host memory instead (`WindowState.copies`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.polls import WHILE_FREED_S, polls_stopped

from ..errors import Aborted, NotSupported, RankFailed, RanksMissing, Revoked
from ..staging.stand_ins import StandIn, given_ours
from ..system.mpi_library import is_cuda_aware
from ..team.base import Base
from ..team.handlers import Handled
from ..team.state import state_of
from ..team.team import Team
from .epochs import WORD_NBYTES
from .exposed import Attached, Exposed, all_from_alloc, checked_size, checked_unit, on_device, place_of, public_copies
from .locks import Locks
from .operations import Operations, Signalling
from .views import Views


class Win(StandIn, Handled, Operations, Signalling, Views):
    """An `mpi4py.MPI.Win` that may also be made of device arrays.

    A window of host memory behaves as in mpi4py. With a window of device memory, from `comm.Alloc`, all array arguments
    are device arrays. Operations are enqueued on the current stream, and access this rank's arrays in stream order.
    They are complete, here and at the target, when the epoch ends or after `Flush`, as in MPI.

    Examples
    --------
    >>> import numpy as np, pyncclx
    >>> from mpi4py import MPI
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> memory = comm.Alloc(4, "i8")
    >>> win = pyncclx.Win.Create(memory, 8, comm=comm)
    >>> win.Fence()
    >>> win.Put(np.full(2, 7), 0, 1)
    >>> win.Fence()
    >>> old = np.zeros(1, "i8")
    >>> win.Fetch_and_op(np.ones(1, "i8"), old, 0, 2, MPI.SUM)
    >>> win.Fence()
    >>> memory.tolist(), old.tolist()
    ([0, 7, 8, 0], [7])
    >>> win.Free()
    """

    like = MPI.Win

    @classmethod
    @mpi_bootstrap.interrupts_deferred()
    def Create(
        cls,
        memory: Any,
        disp_unit: int = 1,
        info: MPI.Info = MPI.INFO_NULL,
        comm: MPI.Intracomm = MPI.COMM_SELF,
    ) -> Win:
        """Expose an array to the other ranks, like mpi4py's Create. Collective.

        Parameters
        ----------
        memory : array or None
            A host array, or a device array from `comm.Alloc`, or a part of one. A rank may expose no memory, by None or
            an empty array.
        disp_unit : int
            Bytes from one displacement to the next, such as ``memory.itemsize``.
        info : MPI.Info
        comm : Intracomm

        Returns
        -------
        Win

        Raises
        ------
        TypeError, MPI.Exception
            For device memory, on all ranks, if some rank's disp_unit is no integer, or not positive (ERR_DISP).
        NotSupported
            On all ranks, if some rank's memory is a device array, `comm.staging` is false, and either some rank's
            memory is not from `comm.Alloc` or the ranks are on several nodes.

        Notes
        -----
        If `comm.staging` is true, such arrays are allowed, and MPI exposes copies of them in host memory. The window
        then has MPI's separate memory model: `Get_attr(MPI.WIN_MODEL)` returns MPI.WIN_SEPARATE. The array contains
        other ranks' changes after this rank has called `Fence`, `Wait`, `Sync`, `Lock` of itself, `Lock_all`, or
        `Free`. Other ranks see this rank's changes after it has called `Fence`, `Post`, `Sync`, `Unlock` of itself or
        `Unlock_all`. Each of these calls reads the whole memory.
        """
        if not isinstance(comm, Base):
            if place_of(comm, memory, disp_unit) == "elsewhere" and not is_cuda_aware():
                raise NotSupported(
                    "Win.Create: a device array, and MPI does not say that it takes some; give a communicator of "
                    "pyncclx, and memory from its Alloc"
                )
            return super().Create(memory, disp_unit, info, comm)._made_of(comm)
        with state_of(comm).recorded(comm, "Win.Create"):
            place = mpi_bootstrap.agree(comm, lambda: place_of(comm, memory, disp_unit))
            found, stages = zip(*mpi_bootstrap.allgather_objects(comm, (place, comm.staging)), strict=True)
            if not on_device(found):
                return super().Create(memory, disp_unit, info, comm)._made_of(comm)
            is_mapped = comm.node_topology.node_count == 1 and not {None, "elsewhere"}.intersection(found)
            if not is_mapped and all(stages):
                return cls._with_copies(memory, disp_unit, info, comm)
            places = all_from_alloc(found, comm.node_topology.node_count)
        reach = Exposed(comm, cast(Team, state_of(comm).team), places)
        win = super().Allocate(WORD_NBYTES, 1, info, comm)._made_of(comm)
        state = win._state
        state.array, state.comm, state.reach = memory, mpi_bootstrap.same_ranks(comm), reach
        state.locks, state.flavor = Locks(comm), MPI.WIN_FLAVOR_CREATE
        return win

    @classmethod
    def _with_copies(cls, memory: Any, disp_unit: int, info: MPI.Info, comm: MPI.Intracomm) -> Win:
        """Create a window whose device arrays have copies in host memory that MPI exposes.

        Collective. Used if peers have not mapped the arrays.
        """
        copies = mpi_bootstrap.agree(comm, lambda: public_copies(comm, memory, disp_unit))
        win = super().Create(copies[0].public if copies else memory, disp_unit, info, comm)._made_of(comm)
        state = win._state
        state.array, state.comm, state.copies = memory, mpi_bootstrap.same_ranks(comm), copies
        return win

    @classmethod
    def Allocate(
        cls, size: int, disp_unit: int = 1, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF
    ) -> Win:
        """Allocate memory, and expose it, like mpi4py's Allocate. Collective.

        Parameters
        ----------
        size : int
            Bytes on this rank; may be 0.
        disp_unit, comm
            As for `Create`.
        info : MPI.Info
            With "pyncclx_memory" = "device" the memory is on the device; `remote` and `tomemory` return it as arrays.
            Free the window before the communicator, whose `Free` frees the memory.

        Returns
        -------
        Win

        Raises
        ------
        TypeError, MPI.Exception
            For device memory, on all ranks, if some rank's size is no integer or negative (ERR_SIZE), or its disp_unit
            is not positive (ERR_DISP).
        NotSupported
            If device memory is requested with a communicator that is not pyncclx's.

        Examples
        --------
        >>> import pyncclx
        >>> from mpi4py import MPI
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> info = MPI.Info.Create({"pyncclx_memory": "device"})
        >>> win = pyncclx.Win.Allocate(32, 8, info, comm)
        >>> win.tomemory().nbytes
        32
        """
        if not _is_for_device(info):
            return super().Allocate(size, disp_unit, info, comm)._made_of(comm)
        if not isinstance(comm, Base):
            raise NotSupported("Win.Allocate: device memory takes a communicator of pyncclx")
        nbytes, unit = mpi_bootstrap.agree(comm, lambda: (checked_size(size), checked_unit("Win.Allocate", disp_unit)))
        # The array must be in a window even if it is empty.
        memory = comm.Alloc(max(nbytes, 1), "u1")[:nbytes]
        win = cls.Create(memory, unit, info, comm)
        win._state.flavor = MPI.WIN_FLAVOR_ALLOCATE
        return win

    @classmethod
    def Allocate_shared(
        cls, size: int, disp_unit: int = 1, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF
    ) -> Win:
        """Allocate memory that all ranks load from and store to. Collective.

        It works like mpi4py's Allocate_shared. Parameters, exceptions and example are those of `Allocate`;
        `Shared_query` returns each rank's memory. On the device the ranks' parts are not contiguous.
        """
        if not _is_for_device(info):
            return super().Allocate_shared(size, disp_unit, info, comm)._made_of(comm)
        if isinstance(comm, Base) and comm.node_topology.node_count > 1:
            raise NotSupported(
                f"Win.Allocate_shared: the ranks are on {comm.node_topology.node_count} nodes, and none maps memory of "
                "another; Split by node, or call Win.Allocate"
            )
        win = cls.Allocate(size, disp_unit, info, comm)
        win._state.flavor = MPI.WIN_FLAVOR_SHARED
        return win

    @classmethod
    def Create_dynamic(cls, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF) -> Win:
        """Create a window to which ranks attach memory. Collective.

        It works like mpi4py's Create_dynamic. Displacements are addresses at the target (`MPI.Get_address`, or CuPy's
        ``array.data.ptr``).

        Parameters
        ----------
        info : MPI.Info
        comm : Intracomm

        Returns
        -------
        Win

        Examples
        --------
        >>> import numpy as np, pyncclx
        >>> from mpi4py import MPI
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> win, memory = pyncclx.Win.Create_dynamic(comm=comm), comm.Alloc(4, "i8")
        >>> win.Attach(memory)
        >>> win.Lock(0)
        >>> win.Put(np.full(2, 7), 0, MPI.Get_address(memory) + 8)
        >>> win.Unlock(0)
        >>> memory.tolist()
        [0, 7, 7, 0]
        """
        win = super().Create_dynamic(info, comm)._made_of(comm)
        if isinstance(comm, Base):
            state = win._state
            state.reach, state.comm, state.array = Attached(comm), mpi_bootstrap.same_ranks(comm), np.zeros(1, "u8")
            MPI.Win.Attach(win, state.array)
            if mpi_bootstrap.topology(comm).node_count == 1:
                state.locks = Locks(comm)
            state.words = mpi_bootstrap.allgather_objects(comm, MPI.Get_address(state.array))
        return win

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        """Create an attribute key; its callbacks receive windows of pyncclx."""
        return super().Create_keyval(given_ours(copy_fn, Win), given_ours(delete_fn, Win), nopython)

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[MPI.Win, int], None]) -> MPI.Errhandler:
        """Create an error handler; its callback receives windows of pyncclx."""
        return super().Create_errhandler(given_ours(errhandler_fn, Win))

    @mpi_bootstrap.interrupts_deferred()
    def Free(self) -> None:
        """Free the window, but not its arrays, like mpi4py's Free. Collective.

        Errors recorded by the device are raised after the release. This rank's part is released in any case.
        """
        errors: list[Exception] = []
        state = self._state
        try:
            if state.reach is not None or state.copies is not None:
                calls = self._calls()
                with nullcontext() if calls is None else calls.meeting("Win.Free"):
                    mpi_bootstrap.agree(state.comm, lambda: _try(self._wait_for_device, errors))
                    # After the rendezvous above, all ranks have called Free and ended their epochs. A rank that arrives
                    # after the others timed out completes that rendezvous, and fails in this one, not in MPI.
                    mpi_bootstrap.agree(state.comm, lambda: _try(self._take, errors))
                with polls_stopped(WHILE_FREED_S):
                    state.comm.Free()
        except BaseException as error:
            # Do not free MPI's window, a word on each rank: MPI would wait for all ranks.
            state.close()
            state.end()
            if not isinstance(error, (RankFailed, Revoked, RanksMissing, Aborted)):
                raise
        else:
            state.close()
            super().Free()
        if errors:
            raise errors[0]


WIN_NULL = Win(MPI.WIN_NULL)
Win.constants = {"WIN_NULL": WIN_NULL}


def _try(step: Callable[[], None], errors: list[Exception]) -> None:
    """Run a step that may fail on this rank only; collect its error for later."""
    try:
        step()
    except Exception as error:
        errors.append(error)


def _is_for_device(info: MPI.Info) -> bool:
    return info != MPI.INFO_NULL and info.Get("pyncclx_memory") == "device"
