"""Copies followed by a signal, for which the target's stream waits, not its host."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import events
from ..arrays.buffers import resolve
from ..arrays.vectors import integer
from ..derived.buffers import TypedBuffer
from ..errors import NotSupported
from ..recording.layout import ANY
from .accesses import Accesses
from .reach import parse


class Signalling(Accesses):
    """The methods of `pyncclx.Win` for signals, which are not in MPI."""

    def Put_signal(self, origin: Any, target_rank: int, target: Any = None, signal: int = 0) -> None:
        """Copy an array into a rank's memory, then increment one of its signals.

        Both are enqueued on the current stream, without an epoch, and can be captured in a CUDA graph. `Wait_signal` on
        the target rank makes its stream wait for the signal. From 16 MiB on a copy engine moves the data.

        Parameters
        ----------
        origin : device array or buffer specification
        target_rank : int
            For MPI.PROC_NULL, the call does nothing.
        target : int or list, optional
            As for `Put`.
        signal : int
            From 0 to 63; each rank has its own signals.

        Raises
        ------
        ValueError
            There is no such signal.
        TypeError, BufferError, MPI.Exception
            As for `Put`.
        NotSupported
            If the window was not made of device memory, if the GPUs have no peer atomics, or if a datatype is derived.

        Examples
        --------
        >>> import numpy as np, pyncclx
        >>> from mpi4py import MPI
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> memory = comm.Alloc(4, "i8")
        >>> win = pyncclx.Win.Create(memory, 8, comm=comm)
        >>> win.Put_signal(np.arange(4), 0, signal=5)
        >>> win.Wait_signal(5)
        >>> memory.tolist()
        [0, 1, 2, 3]
        """
        began = events.begin("Put_signal") if events.listeners else None
        exposed = self._exposed("Put_signal")
        exposed.team.require_links("Put_signal")
        buffer = resolve(origin, "Put_signal: origin", writable=False, device=exposed.device)
        target_rank = integer(target_rank)
        self._record("Put_signal", target_rank, buffer.nbytes, signal)
        if target_rank != MPI.PROC_NULL:
            found = exposed.find("Put_signal", target_rank, parse("Put_signal", target), buffer)
            if isinstance(found, TypedBuffer):
                raise NotSupported("Put_signal: target has a derived datatype; Put, then Put_signal without elements")
            exposed.signals.put(buffer, found.address, target_rank, signal)
        if began is not None:
            events.emit("Put_signal", events.NATIVE, buffer.nbytes, began, peer=target_rank)

    def Wait_signal(self, signal: int = 0, count: int = 1) -> None:
        """Make the current stream wait until a signal has arrived `count` more times.

        Signals that earlier calls waited for do not count. Subsequent work on the stream sees the data that was put
        with the signals. The host does not wait. After `PYNCCLX_TIMEOUT` the stream continues, and the next operation
        of the communicator or window raises `PeerTimeout`.

        Parameters
        ----------
        signal : int
            From 0 to 63.
        count : int
            With 0, the call waits for no signal.

        Raises
        ------
        ValueError
            If there is no such signal, or `count` is negative.
        NotSupported
            The window was not made of device memory.

        Notes
        -----
        CUDA loads no module while the process has work on any stream of the GPU, and a wait for a signal is such work.
        So load all kernels that the signal depends on beforehand. Run the program's own kernels once, and `Accumulate`,
        `Get_accumulate`, `Fetch_and_op` and collectives once with the same types and operators. The kernels of `Put`,
        `Get` and `Put_signal` are loaded when a window is created.

        Examples
        --------
        See `Put_signal`.
        """
        exposed = self._exposed("Wait_signal")
        self._record("Wait_signal", ANY, tag=signal)
        exposed.signals.wait(signal, count)
