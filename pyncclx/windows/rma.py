"""One-sided access to arrays of `comm.Alloc`: whose memory lies where, copies to and from it, atomic changes in it."""

from __future__ import annotations

import operator
import struct
from contextlib import suppress
from typing import Any, NamedTuple

from mpi4py import MPI

from ..arrays import datatypes
from ..arrays.buffers import Buffer, resolve
from ..arrays.datatypes import Datatype
from ..arrays.vectors import integer
from ..backends import Device
from ..errors import MPIError, NotSupported
from ..launch import kernels
from ..operators import ops
from ..operators.user_op import no_arithmetic
from ..team.streams import stream_for
from ..team.team import Team

ARGUMENTS = struct.Struct("=QQQQQ")  # RmaArgs of cuda/windows/rma.cu
BLOCKS_A_CHANNEL = 4
_BITWISE = {MPI.REPLACE.handle: "Replace", MPI.NO_OP.handle: "NoOp"}
COMPARE_AND_SWAP = "CompareAndSwap"


class Target(NamedTuple):
    """Elements in a rank's memory."""

    address: int  # as mapped here
    elements: int
    datatype: Datatype


class Reach:
    """Memory of all ranks that this rank's copies and kernels reach. Subclasses say where it lies.

    Attributes
    ----------
    team : Team
    """

    team: Team

    @property
    def device(self) -> Device:
        """Where it is."""
        return self.team.device

    @property
    def in_use(self) -> bool:
        """Whether there is any."""
        return True

    def holds(self, rank: int, spec: Any) -> bool:
        """Whether a target specification names such memory, not what MPI alone knows of."""
        raise NotImplementedError

    def place(self, operation: str, rank: int, disp: int, nbytes: int) -> int:
        """The address, as mapped here, of some bytes of a rank's memory."""
        raise NotImplementedError

    def origin(self, spec: Any, name: str, *, writable: bool) -> Buffer:
        """Resolve an argument in this rank's device memory."""
        return resolve(spec, name, writable=writable, device=self.device)

    def target(self, operation: str, rank: int, spec: Any, origin: Buffer) -> Target:
        """Find the elements that a target specification names: mpi4py's None, disp, or (disp, count, datatype).

        Raises
        ------
        TypeError, MPI.Exception
            It is none; there is no such rank (ERR_RANK), the elements are not all in its memory (ERR_RMA_RANGE), or
            not as long as origin's (ERR_TRUNCATE).
        NotSupported
            A derived datatype.
        """
        disp, count, key = parts(operation, spec)
        datatype = origin.datatype if key is None else datatypes.of(key)
        count = origin.nbytes // datatype.itemsize if count is None else count
        rank = integer(rank)
        if not 0 <= rank < self.team.size:
            raise MPIError(MPI.ERR_RANK, f"{operation}: target_rank is {rank}; ranks are 0 to {self.team.size - 1}")
        nbytes = count * datatype.itemsize
        if nbytes != origin.nbytes:
            text = f"origin has {origin.nbytes} bytes, target {nbytes}; make them equal"
            raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
        return Target(self.place(operation, rank, disp, nbytes), count, datatype)

    def close(self) -> None:
        """Give back what it has."""
        raise NotImplementedError

    def put(self, origin: Buffer, target: Target) -> Any:
        """Enqueue a copy to a rank's memory; returns the stream."""
        stream = stream_for(self.device, (origin,))
        self.device.copy(target.address, origin.address, origin.nbytes, stream)
        return stream

    def get(self, origin: Buffer, target: Target) -> Any:
        """Enqueue a copy from a rank's memory; returns the stream."""
        stream = stream_for(self.device, (origin,))
        self.device.copy(origin.address, target.address, origin.nbytes, stream)
        return stream

    def change(
        self,
        operation: str,
        op: Any,
        target: Target,
        origin: Buffer,
        result: Buffer | None = None,
        compare: Buffer | None = None,
    ) -> Any:
        """Enqueue an atomic change of each element in a rank's memory; returns the stream.

        `op` is MPI's, or COMPARE_AND_SWAP.
        """
        buffers = tuple(buffer for buffer in (origin, result, compare) if buffer is not None)
        for buffer in buffers[1:]:
            if buffer.datatype is not origin.datatype or buffer.count != origin.count:
                raise ValueError(
                    f"{operation}: origin, result and compare differ in datatype or count; make them equal"
                )
        if target.datatype.itemsize != origin.datatype.itemsize:
            raise ValueError(f"{operation}: origin and target differ in datatype; make them equal")
        template = _template(operation, op, origin)
        self.team.require_links(operation)
        if target.address % target.datatype.itemsize:
            raise NotSupported(f"{operation}: the target's address is no multiple of the element's length; move it")
        stream = stream_for(self.device, buffers)
        if target.elements == 0:
            return stream
        addresses = (
            buffer.address if buffer else default for buffer, default in ((compare, origin.address), (result, 0))
        )
        parameters = ARGUMENTS.pack(origin.address, *addresses, target.address, target.elements)
        function = kernels.load_template(self.device, "windows/rma.cu", "accumulate", *template)
        threads = min(self.device.threads, 256)
        grid = min(-(-target.elements // threads), BLOCKS_A_CHANNEL * self.device.max_channels)
        self.device.launch(function, grid, threads, parameters, stream)
        return stream


def prepare(device: Device) -> None:
    """Have the kernels compiled where all of a file are, so that later calls find them."""
    if device.compiles_whole_files:
        kernels.load_template(device, "windows/rma.cu", "accumulate", *kernels.legal_templates("windows/rma.cu")[0])


def _template(operation: str, op: Any, origin: Buffer) -> tuple[str, str]:
    datatype = origin.datatype
    if datatype is datatypes.MOVED_ONLY["bytes"]:
        raise no_arithmetic(operation)
    if datatype.itemsize > kernels.MOST_ATOMIC_NBYTES:
        raise NotSupported(
            f"{operation}: {datatype.name} has {datatype.itemsize} bytes, and GPUs change at most 8 atomically; Get, "
            "and Put under an exclusive lock"
        )
    bitwise = COMPARE_AND_SWAP if op == COMPARE_AND_SWAP else _BITWISE.get(getattr(op, "handle", 0))
    if bitwise:
        return kernels.BITWISE[datatype.itemsize], bitwise
    reduction = ops.of(op, operation)
    if not isinstance(reduction, ops.Op) or reduction.mpi is None:
        raise MPIError(MPI.ERR_OP, f"{operation}: op is {op!r}; it must be one of MPI's own")
    return ops.template(operation, reduction, origin)


def parts(operation: str, spec: Any) -> tuple[int, int | None, Any]:
    """Displacement, count and datatype of a target; None where left out."""
    if spec is None:
        return 0, None, None
    with suppress(TypeError):  # of what is no integer
        if not isinstance(spec, (list, tuple)):
            return operator.index(spec), None, None
        if len(spec) <= 3:
            given: list[Any] = [*spec]
            disp, count, key = given + [0, None, None][len(given) :]
            return operator.index(disp), None if count is None else operator.index(count), key
    raise TypeError(f"{operation}: target is {spec!r}; expecting None, disp, or (disp, count, datatype)")
