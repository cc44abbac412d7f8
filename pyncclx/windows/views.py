"""Memory of a window's ranks as arrays, and memory attached to dynamic windows."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from ..arrays.places import host_arrays, where
from ..errors import NotSupported
from .epochs import Epochs
from .exposed import Attached, Exposed


class Views(Epochs):
    """The methods of `pyncclx.Win` that attach memory or return it."""

    def Attach(self, memory: Any) -> None:
        """Attach memory of this rank to a dynamic window. Not collective.

        It works like mpi4py's Attach.

        Parameters
        ----------
        memory : array
            A host array, or a device array from `comm.Alloc`.

        Raises
        ------
        NotSupported
            If peers have not mapped the device array: it is not from `comm.Alloc`, or the ranks are on several nodes.
        """
        if isinstance(self._state.reach, Attached) and self._state.reach.attach(memory):
            return
        if where(memory) == "device" and not host_arrays():
            if self._node_count() > 1:
                raise NotSupported(
                    f"Attach: device arrays are for ranks of one node, and the window's are on {self._node_count()}; "
                    "make a window of the array by Win.Create, or attach host memory"
                )
            raise NotSupported("Attach: the device array must be from comm.Alloc of the window's communicator")
        super().Attach(memory)

    def Detach(self, memory: Any) -> None:
        """Detach memory after this rank's enqueued operations, like mpi4py's Detach."""
        self._wait_for_device()
        if not (isinstance(self._state.reach, Attached) and self._state.reach.detach(memory)):
            super().Detach(memory)

    def Shared_query(self, rank: int) -> tuple[Any, int]:
        """Return a rank's memory and displacement unit, like mpi4py's Shared_query.

        Parameters
        ----------
        rank : int
            MPI.PROC_NULL stands for the first rank that has memory.

        Returns
        -------
        memory : array of bytes
            On the device, the array that `remote` returns.
        disp_unit : int

        Raises
        ------
        MPI.Exception
            Class ERR_RANK, if there is no such rank.
        """
        if not isinstance(self._state.reach, Exposed):
            return super().Shared_query(rank)
        places = self._state.reach.places
        if rank == MPI.PROC_NULL:
            rank = next((number for number, place in enumerate(places) if place.nbytes), 0)
        rank = self._state.reach.check_rank("Shared_query", rank)
        return self._state.reach.array(rank), places[rank].disp_unit

    def remote(self, rank: int) -> Any:
        """Return a rank's memory as a device array of bytes.

        Kernels that use the array load and store over the link. Order these accesses by the window's epochs, or in the
        program.

        Parameters
        ----------
        rank : int

        Returns
        -------
        device array, uint8
            Valid until the communicator is freed.

        Raises
        ------
        MPI.Exception
            Class ERR_RANK, if there is no such rank.
        NotSupported
            If the window was not made of device memory, or is dynamic.

        Examples
        --------
        >>> import pyncclx
        >>> from mpi4py import MPI
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> memory = comm.Alloc(2, "i8")
        >>> win = pyncclx.Win.Create(memory, 8, comm=comm)
        >>> win.remote(0).view("i8")[1] = 7
        >>> memory.tolist()
        [0, 7]
        """
        if not isinstance(self._state.reach, Exposed):
            raise self._not_mapped("remote")
        return self._state.reach.array(self._state.reach.check_rank("remote", rank))

    def tomemory(self) -> Any:
        """Return this rank's memory; device memory as bytes, like mpi4py's tomemory."""
        if self._state.copies:
            return self._state.copies[0].array()
        return self.remote(self._state.comm.rank) if isinstance(self._state.reach, Exposed) else super().tomemory()

    def Get_attr(self, keyval: int) -> Any:
        """Return an attribute, like mpi4py's Get_attr.

        If the window has device memory, base, size and unit are those of the device memory.
        """
        state, known = self._state, dict[int, Any]()
        if state.flavor is not None:
            known[MPI.WIN_CREATE_FLAVOR] = state.flavor
        if state.copies is not None:
            known[MPI.WIN_MODEL] = MPI.WIN_SEPARATE
        if state.copies:
            known[MPI.WIN_BASE] = state.copies[0].address
        if isinstance(state.reach, Exposed):
            place = state.reach.places[state.comm.rank]
            known |= {MPI.WIN_BASE: state.reach.bases[state.comm.rank], MPI.WIN_SIZE: place.nbytes}
            known[MPI.WIN_DISP_UNIT] = place.disp_unit
        return known[keyval] if keyval in known else super().Get_attr(keyval)

    @property
    def attrs(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Base address, length in bytes, and displacement unit."""
        base, size, unit = (self.Get_attr(key) for key in (MPI.WIN_BASE, MPI.WIN_SIZE, MPI.WIN_DISP_UNIT))
        return base, size, unit

    @property
    def flavor(self) -> int:  # type: ignore[override]
        """Kind of the window, such as MPI.WIN_FLAVOR_CREATE."""
        return cast(int, self.Get_attr(MPI.WIN_CREATE_FLAVOR))

    @property
    def model(self) -> int:  # type: ignore[override]
        """Memory model: unified, or separate if MPI exposes copies."""
        return cast(int, self.Get_attr(MPI.WIN_MODEL))
