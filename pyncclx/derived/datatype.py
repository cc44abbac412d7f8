"""The datatypes of `pyncclx.MPI`, whose `Pack` and `Unpack` take device arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mpi4py import MPI

from .. import backends
from ..arrays import places
from ..arrays.buffers import resolve
from ..arrays.places import on_host, where
from ..arrays.specs import span_of
from ..errors import MPIError, NotSupported
from ..staging.copies import Copy
from ..staging.stand_ins import StandIn, constants_of, given_ours
from ..team.base import Base
from ..team.streams import ANY_CALLER, Caller, stream_for
from .packing import PACK, UNPACK, packing_of
from .typed import resolve_typed
from .typemap import typemap_of


class Datatype(StandIn, MPI.Datatype):
    """An `mpi4py.MPI.Datatype` that packs device arrays too, in MPI's format.

    Kernels pack and unpack device arrays. For the external representation, MPI packs and unpacks host copies.
    """

    like = MPI.Datatype
    _decoded: MPI.Datatype  # mpi4py's object, which frees the handle

    def __reduce__(self) -> str | tuple[Any, ...]:
        reduced: Any = super().__reduce__()
        if any(constant == self for constant in self.constants.values()):
            return cast(tuple[Any, ...], reduced)
        create, (base, combiner, parameters, free) = reduced
        return create, (_ours(base), combiner, {key: _each_ours(value) for key, value in parameters.items()}, free)

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Return the datatype of a type code, like mpi4py's fromcode."""
        return _ours(super().fromcode(code))

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        """Create an attribute key; its callbacks receive datatypes of pyncclx."""
        return super().Create_keyval(given_ours(copy_fn, Datatype), given_ours(delete_fn, Datatype), nopython)

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: MPI.Comm) -> int:
        """Pack elements of this datatype into contiguous memory, like mpi4py's Pack.

        Parameters
        ----------
        inbuf : array
            A device or host array; as many elements are packed as it can hold.
        outbuf : array
            Device arrays are packed on the current stream. If only one of the arrays is on the device, it is copied
            through the host, and the result is complete when the call returns.
        position : int
            Index of the first packed byte in `outbuf`.
        comm : MPI.Comm

        Returns
        -------
        int
            The position after the packed elements.

        Raises
        ------
        MPI.Exception
            Class ERR_TRUNCATE, if outbuf is too short.
        ValueError
            If the datatype describes bytes outside inbuf.

        Examples
        --------
        >>> import numpy as np
        >>> from pyncclx import MPI
        >>> column = MPI.LONG.Create_vector(2, 1, 3).Commit()
        >>> packed = np.zeros(2, "i8")
        >>> column.Pack(np.arange(6).reshape(2, 3), packed, 0, MPI.COMM_SELF)
        16
        >>> packed.tolist()
        [0, 3]
        """
        if _are_on_device(inbuf, outbuf) and self._has_kernels:
            return _move(self, PACK, inbuf, outbuf, position, comm)
        call = super().Pack
        return _on_copies(self, "Pack", lambda source, target: call(source, target, position, comm), inbuf, outbuf)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: MPI.Comm) -> int:
        """Unpack elements packed by `Pack` or by MPI, like mpi4py's Unpack.

        Parameters and exceptions are those of `Pack`, with the elements in `outbuf` and contiguous memory in `inbuf`.
        """
        if _are_on_device(inbuf, outbuf) and self._has_kernels:
            return _move(self, UNPACK, outbuf, inbuf, position, comm)
        call = super().Unpack
        return _on_copies(self, "Unpack", lambda source, target: call(source, position, target, comm), inbuf, outbuf)

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Pack elements in a portable representation, like mpi4py's Pack_external.

        Device arrays are packed on host copies; the result is complete when the call returns.
        """
        call, pack = super().Pack_external, "Pack_external"
        return _on_copies(self, pack, lambda source, target: call(datarep, source, target, position), inbuf, outbuf)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        """Unpack elements of a portable representation, like mpi4py's Unpack_external.

        Device arrays are unpacked on host copies; the result is complete when the call returns.
        """
        call, unpack = super().Unpack_external, "Unpack_external"
        return _on_copies(self, unpack, lambda source, target: call(datarep, source, position, target), inbuf, outbuf)

    @property
    def _has_kernels(self) -> bool:
        """Whether kernels pack the datatype in the same format as MPI.

        The formats differ if MPI omits the padding inside its pairs.
        """
        try:
            return typemap_of(self).size == self.Get_size()
        except NotSupported:
            return False


def _move(datatype: Datatype, kernel: str, array: Any, packed: Any, position: int, comm: MPI.Comm) -> int:
    """Pack or unpack as many elements as an array can hold; return the position after."""
    device, operation = backends.select(), kernel.capitalize()
    array_name, packed_name = ("inbuf", "outbuf") if kernel == PACK else ("outbuf", "inbuf")
    name, writable = f"{operation}: {array_name}", kernel == UNPACK
    whole = resolve([array, MPI.BYTE], name, writable=writable, device=device)
    memory = resolve([packed, MPI.BYTE], f"{operation}: {packed_name}", writable=not writable, device=device)
    count = whole.nbytes // max(typemap_of(datatype).extent, 1)
    typed = resolve_typed([array, count, datatype], name, writable=writable, device=device)
    end = position + typed.nbytes
    if position < 0 or end > memory.nbytes:
        needed = f"those from {position} to {end} are needed; pass a larger array"
        raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {packed_name} has {memory.nbytes} bytes, {needed}")
    caller: Caller = comm.state if isinstance(comm, Base) else ANY_CALLER
    stream = stream_for(device, (typed.buffer, memory), caller)
    place = memory.address + position
    for launch in packing_of(device).launches(kernel, typed.parts, typed.buffer.address, place, stream):
        device.launch(*launch, stream)
    if caller.blocking == "host":
        device.synchronize(stream)
    return end


def _are_on_device(inbuf: Any, outbuf: Any) -> bool:
    """Return whether both arrays are on the device."""
    return not on_host(inbuf, outbuf) and "host" not in (where(inbuf), where(outbuf))


def _on_copies(datatype: MPI.Datatype, operation: str, call: Callable[[Any, Any], int], inbuf: Any, outbuf: Any) -> int:
    """Make MPI's call, on host copies of device arrays."""
    if places.host_arrays() or on_host(inbuf, outbuf):
        return call(inbuf, outbuf)
    spans = [_span(datatype, inbuf), (0, 0)] if operation.startswith("Pack") else [(0, 0), _span(datatype, outbuf)]
    source = target = None
    if where(inbuf) != "host":
        source = Copy(inbuf, f"{operation}: inbuf", written=False, whole=True, span=spans[0])
        source.download()
    if where(outbuf) != "host":
        target = Copy(outbuf, f"{operation}: outbuf", written=True, whole=False, span=spans[1])
        target.download()
    position = call(inbuf if source is None else source.host_array(), outbuf if target is None else target.host_array())
    if target is not None:
        target.upload()
    return position


def _span(datatype: MPI.Datatype, array: Any) -> tuple[int, int]:
    """Return begin and end of the bytes of all elements that a device array can hold."""
    if where(array) == "host":
        return 0, 0
    nbytes = resolve([array, MPI.BYTE], "Pack: array", writable=False, device=backends.select()).nbytes
    return span_of([array, nbytes // max(datatype.extent, 1), datatype], 1)


Datatype.constants = constants_of(Datatype)


def _ours(datatype: MPI.Datatype) -> Datatype:
    """Convert mpi4py's datatype to this class, to unpickle it."""
    for name, constant in Datatype.constants.items():
        if vars(MPI)[name] is datatype:
            return cast(Datatype, constant)
    made = Datatype(datatype)
    made._decoded = datatype
    return made


def _each_ours(value: Any) -> Any:
    if isinstance(value, list):
        return [_each_ours(each) for each in value]
    return _ours(value) if isinstance(value, MPI.Datatype) else value
