"""One-sided operations that change elements atomically, or that signal the target."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import events
from ..arrays.buffers import resolve
from ..arrays.vectors import integer
from ..derived.buffers import TypedBuffer, buffer_of
from ..errors import NotSupported
from ..recording.layout import ANY
from . import atomics
from .accesses import Accesses, Enqueued, on_device
from .copies import Copies
from .reach import TargetSpec, parse


class Operations(Copies):
    """The methods of `pyncclx.Win` that change elements atomically."""

    @on_device
    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> None:
        """Accumulate an array into a rank's memory, each element atomically.

        It works like mpi4py's Accumulate.

        Parameters
        ----------
        origin, target_rank, target
            As for `Put`. The elements of origin and target are of one predefined datatype, of 1, 2, 4 or 8 bytes.
        op : MPI.Op
            One of MPI's own, including MPI.REPLACE.

        Raises
        ------
        TypeError
            If `op` is no operator, or the elements are text, dates or records.
        MPI.Exception
            Class ERR_OP, if `op` is not defined on the elements, was created by the program, or is MPI.NO_OP, which
            needs a result. Class ERR_ARG, if origin and target differ in the datatype of their elements. Others as for
            `Put`.
        NotSupported
            If the elements cannot be updated atomically: they are longer than 8 bytes, not aligned, or on a GPU that
            NVLink does not connect. In a captured graph, if origin or result has a derived datatype. Others as for
            `Put`.
        """
        self._change("Accumulate", op, {"origin": origin}, target_rank, target)

    @on_device
    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Copy a rank's elements into `result`, then accumulate `origin` at the target.

        It works like mpi4py's Get_accumulate. Parameters are those of `Accumulate`, and an array `result` of origin's
        datatype and length. MPI.NO_OP changes nothing and ignores `origin`. Raises ValueError if origin and result
        differ in datatype or length.
        """
        self._change("Get_accumulate", op, {"origin": origin, "result": result}, target_rank, target)

    @on_device
    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start an `Accumulate` whose request completes when `origin` may be reused.

        It works like mpi4py's Raccumulate.
        """
        return self._change("Raccumulate", op, {"origin": origin}, target_rank, target).request()

    @on_device
    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """Start a `Get_accumulate` whose request completes when `result` has the data.

        It works like mpi4py's Rget_accumulate.
        """
        return self._change("Rget_accumulate", op, {"origin": origin, "result": result}, target_rank, target).request()

    @on_device
    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: MPI.Op = MPI.SUM
    ) -> None:
        """Accumulate `origin` into a rank's element; copy its old value to `result`.

        Both are one atomic operation. It works like mpi4py's Fetch_and_op.

        Parameters
        ----------
        origin, result : array or buffer specification
            One element each, of the same datatype; ValueError otherwise.
        target_rank : int
        target_disp : int
            In units of the window's disp_unit.
        op : MPI.Op

        Raises
        ------
        TypeError, ValueError, MPI.Exception, NotSupported
            As for `Get_accumulate`.
        """
        target = TargetSpec(integer(target_disp))
        self._change("Fetch_and_op", op, {"origin": origin, "result": result}, target_rank, target)

    @on_device
    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        """Replace a rank's element if it equals `compare`; copy the old one to `result`.

        It works like mpi4py's Compare_and_swap. Elements are compared bit by bit.

        Parameters
        ----------
        origin, compare, result : array or buffer specification
            One element each, of the same datatype; ValueError otherwise.
        target_rank : int
        target_disp : int
            In units of the window's disp_unit.

        Raises
        ------
        TypeError, ValueError, MPI.Exception, NotSupported
            As for `Get_accumulate`.
        """
        given = {"origin": origin, "compare": compare, "result": result}
        self._change("Compare_and_swap", atomics.COMPARE_AND_SWAP, given, target_rank, TargetSpec(integer(target_disp)))

    def _change(self, operation: str, op: Any, given: dict[str, Any], rank: int, target: Any) -> Enqueued:
        reach, functor = self._reach_now(), atomics.functor_of(operation, op)
        spec = target if isinstance(target, TargetSpec) else parse(operation, target)
        if atomics.is_ignored(operation, op, given["origin"]):
            given["origin"] = given["result"]
        read = resolve if operation in atomics.OF_ONE_ELEMENT else buffer_of
        buffers = {
            name: read(each, f"{operation}: {name}", writable=name == "result", device=reach.device)
            for name, each in given.items()
            if each is not None or rank != MPI.PROC_NULL
        }
        if rank == MPI.PROC_NULL:
            own = tuple(buffers.values())
            return Enqueued(reach, reach.stream_for(own), own)
        atomics.check_count(operation, buffers)
        found = reach.find(operation, rank, spec, buffers["origin"])
        found = atomics.in_elements(operation, found)
        buffers = {name: atomics.in_elements(operation, each) for name, each in buffers.items()}
        return Enqueued(reach, atomics.change(reach, operation, functor, found, **buffers), tuple(buffers.values()))


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
            If there is no such signal.
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
            If the window was not made of device memory.

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
