"""MPI's windows of one-sided communication over device arrays: peers load and store by NVLink, without a network.

What MPI knows of such a window is another one beneath, of a word in each rank's host memory: its locks and epochs are
MPI's. Before each call that ends an epoch the host waits for the GPU, so that all is done when the peers hear of it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from ..arrays.buffers import where
from ..arrays.readers import host_arrays
from ..errors import NotSupported
from ..staging.stand_ins import StandIn
from ..system.mpi_library import is_cuda_aware
from ..team.base import Base
from . import rma
from .epochs import WORD, Epochs
from .exposed import Attached, Exposed, Place, place_of

KIND = "pyncclx_memory"  # an info key of Allocate; its value for memory of the device:
DEVICE = "device"


class Win(StandIn, Epochs):
    """An `mpi4py.MPI.Win` that may also be made of device arrays from `comm.Alloc`.

    Of host memory it is mpi4py's own in everything. Of device memory, origins, results and what they are compared with
    are device arrays; datatypes are plain ones. Operations are enqueued on the current stream, in whose order they see
    and make data here; they are complete, here and at the target, when the epoch ends or after `Flush`, as in MPI.
    """

    like = MPI.Win
    _array: Any = None

    @classmethod
    def Create(
        cls,
        memory: Any,
        disp_unit: int = 1,
        info: MPI.Info = MPI.INFO_NULL,
        comm: MPI.Intracomm = MPI.COMM_SELF,
    ) -> Win:
        """Expose an array to the other ranks: one in host memory, or a device array from `comm.Alloc`. Collective.

        Raises
        ------
        NotSupported
            On all ranks: some rank's is a device array, but not every rank's is from `comm.Alloc`.
        """
        place = place_of(comm, memory, disp_unit)
        if not isinstance(comm, Base):
            if place is not None and not is_cuda_aware():
                raise NotSupported(
                    "Win.Create: a device array, and MPI does not say that it takes some; give a communicator of "
                    "pyncclx, and memory from its Alloc"
                )
            return super().Create(memory, disp_unit, info, comm)
        found = MPI.Comm.allgather(comm, place)
        places = [each for each in found if isinstance(each, Place)]
        if not any(found):
            return _like(comm, super().Create(memory, disp_unit, info, comm))
        for rank, each in enumerate(found):
            if not isinstance(each, Place):
                raise NotSupported(
                    f"Win.Create: the memory of rank {rank} is not from comm.Alloc of this communicator, that of other "
                    "ranks is; make all of it so, or copy to host arrays"
                )
        win = super().Allocate(WORD, 1, info, comm)
        win._array, win._comm = memory, MPI.Intracomm(MPI.Comm.Dup(comm))
        win._exposed = Exposed(comm, comm.team, places)
        if comm.rank == 0:
            rma.prepare(win._exposed.device)
        MPI.Comm.Barrier(win._comm)
        return win

    @classmethod
    def Allocate(
        cls, size: int, disp_unit: int = 1, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF
    ) -> Win:
        """Allocate memory, and expose it. Collective.

        It is on the host, or, if `info` has "pyncclx_memory" = "device", on the device: `remote` gives it as an array.
        """
        if info == MPI.INFO_NULL or info.Get(KIND) != DEVICE:
            return _like(comm, super().Allocate(size, disp_unit, info, comm))
        if not isinstance(comm, Base):
            raise NotSupported("Win.Allocate: device memory takes a communicator of pyncclx")
        return cls.Create(comm.Alloc(max(size, 1), "u1")[:size], disp_unit, info, comm)  # which is in a window if empty

    @classmethod
    def Allocate_shared(
        cls, size: int, disp_unit: int = 1, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF
    ) -> Win:
        """Allocate memory that all ranks load from and store to; `Shared_query` gives each rank's. Collective.

        With "pyncclx_memory" = "device" in `info` it is `Allocate`: ranks' parts are not behind each other.
        """
        if info == MPI.INFO_NULL or info.Get(KIND) != DEVICE:
            return _like(comm, super().Allocate_shared(size, disp_unit, info, comm))
        return cls.Allocate(size, disp_unit, info, comm)

    @classmethod
    def Create_dynamic(cls, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF) -> Win:
        """Make a window to which ranks attach memory: on the host, or device arrays from `comm.Alloc`. Collective.

        Displacements are addresses, as the target has them (`MPI.Get_address`, or CuPy's ``array.data.ptr``).
        """
        win = _like(comm, super().Create_dynamic(info, comm))
        if isinstance(comm, Base):
            win._exposed, win._comm, win._array = Attached(comm), MPI.Intracomm(MPI.Comm.Dup(comm)), np.zeros(1, "u8")
            MPI.Win.Attach(win, win._array)
            win._words = MPI.Comm.allgather(comm, MPI.Get_address(win._array))
        return win

    def Attach(self, memory: Any) -> None:
        """Expose memory of this rank, too. Not collective, but for the `comm.Alloc` that made a device array.

        Raises
        ------
        NotSupported
            A device array from elsewhere, which peers have not mapped.
        """
        if isinstance(self._exposed, Attached) and self._exposed.attach(memory):
            return
        if where(memory) == "device" and not host_arrays():
            raise NotSupported("Attach: the device array must be from comm.Alloc of the window's communicator")
        super().Attach(memory)

    def Detach(self, memory: Any) -> None:
        """Expose memory no longer. It waits for what this rank has enqueued."""
        self._settle()
        if not (isinstance(self._exposed, Attached) and self._exposed.detach(memory)):
            super().Detach(memory)

    def Shared_query(self, rank: int) -> tuple[Any, int]:
        """A rank's memory and its unit of displacements; on the device, an array of bytes as `remote` gives it.

        Of PROC_NULL: those of the first rank that has memory.
        """
        if not isinstance(self._exposed, Exposed):
            return super().Shared_query(rank)
        if rank == MPI.PROC_NULL:
            sizes = [place.nbytes for place in self._exposed.places]
            rank = next((number for number, nbytes in enumerate(sizes) if nbytes), 0)
        return self.remote(rank), self._exposed.places[rank].disp_unit

    def Free(self) -> None:
        """Free the window; the arrays stay. Collective."""
        if self._exposed is not None:
            self._settle()
            MPI.Comm.Barrier(self._comm)
            self._comm.Free()
            self._exposed.close()
            self._exposed = None
        super().Free()
        self._array = None

    def remote(self, rank: int) -> Any:
        """A rank's memory as a device array of bytes: kernels load from it and store to it, through the link.

        It lasts until the communicator is freed. The window's epochs order such accesses, or the program does.

        Raises
        ------
        NotSupported
            The window is of host memory, or dynamic.
        """
        if not isinstance(self._exposed, Exposed):
            raise NotSupported("remote: the window was not made of device memory; for host memory see Shared_query")
        return self._exposed.array(rank)

    def tomemory(self) -> Any:
        """This rank's memory: on the device, its array of bytes."""
        return self.remote(self._comm.rank) if isinstance(self._exposed, Exposed) else super().tomemory()

    def Get_attr(self, keyval: int) -> Any:
        """As mpi4py's; base, size and unit are those of the device memory."""
        if isinstance(self._exposed, Exposed):
            place = self._exposed.places[self._comm.rank]
            known = {MPI.WIN_BASE: self._exposed.bases[self._comm.rank], MPI.WIN_SIZE: place.nbytes}
            known |= {MPI.WIN_DISP_UNIT: place.disp_unit, MPI.WIN_CREATE_FLAVOR: MPI.WIN_FLAVOR_CREATE}
            if keyval in known:
                return known[keyval]
        return super().Get_attr(keyval)

    @property
    def attrs(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Base address, bytes, and unit of displacements."""
        base, size, unit = (self.Get_attr(key) for key in (MPI.WIN_BASE, MPI.WIN_SIZE, MPI.WIN_DISP_UNIT))
        return base, size, unit


_Made = TypeVar("_Made", bound=Win)


def _like(comm: MPI.Intracomm, win: _Made) -> _Made:
    """A window that may stage what its communicator may."""
    if isinstance(comm, Base):
        win._staging = comm.staging
    return win


WIN_NULL = Win(MPI.WIN_NULL)
Win.constants = {"WIN_NULL": WIN_NULL}
