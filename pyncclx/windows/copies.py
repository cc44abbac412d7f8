"""One-sided copies to and from a rank's memory: Put, Get, and their forms with requests."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..arrays.buffers import resolve
from ..team.streams import stream_for
from .accesses import Accesses, Enqueued, on_device
from .targets import parse


class Copies(Accesses):
    """The methods of `pyncclx.Win` that copy."""

    @on_device
    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Copy an array into a rank's memory. As mpi4py's Put; of device memory on the current stream.

        Parameters
        ----------
        origin : array or buffer specification
            A device array if the target is device memory, of contiguous elements. It may be used again on the
            current stream at once, elsewhere after the epoch or a flush.
        target_rank : int
            MPI.PROC_NULL: nothing is copied.
        target : int or list, optional
            Displacement, in units of the window's disp_unit; or ``[disp, count, datatype]``, of which the last ones
            may be left out. Left out, it is 0, and count and datatype are origin's.

        Raises
        ------
        TypeError, ValueError, BufferError
            As mpi4py does for the same arguments.
        MPI.Exception
            Of class ERR_RANK, ERR_COUNT, ERR_DISP or ERR_RMA_RANGE: no such elements; ERR_TRUNCATE: origin has
            another length; ERR_WIN: the communicator has been freed.
        NotSupported
            The array and the target's memory are not both on the device, or the datatype is a derived one.
        """
        self._copy("Put", origin, target_rank, target)

    @on_device
    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Copy from a rank's memory into an array. As mpi4py's Get; of device memory on the current stream.

        Parameters and exceptions are those of `Put`, with `origin` written to.
        """
        self._copy("Get", origin, target_rank, target)

    @on_device
    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """`Put`, with a request that is over when `origin` may be used again. As mpi4py's Rput."""
        return self._copy("Rput", origin, target_rank, target).request()

    @on_device
    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """`Get`, with a request that is over when `origin` holds the data. As mpi4py's Rget."""
        return self._copy("Rget", origin, target_rank, target).request()

    def _copy(self, operation: str, origin: Any, rank: int, target: Any) -> Enqueued:
        reach, spec, gets = self._reach_now(), parse(operation, target), operation in ("Get", "Rget")
        device = reach.device
        if rank == MPI.PROC_NULL and origin is None:
            return Enqueued(device, device.current_stream(), ())
        here = resolve(origin, f"{operation}: origin", writable=gets, device=device)
        stream = stream_for(device, (here,))
        if rank != MPI.PROC_NULL:
            there = reach.find(operation, rank, spec, here).address
            ends = (here.address, there) if gets else (there, here.address)
            device.copy(*ends, here.nbytes, stream)
        return Enqueued(device, stream, (here,))
