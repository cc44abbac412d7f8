"""Accumulate and other atomic changes of a rank's memory (cuda/windows/rma.cu)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Device
from ..derived.buffers import TypedBuffer, without_gaps
from ..derived.packing import packing_of
from ..errors import MPIError, NotSupported
from ..launch import kernels, sources
from ..memory.cstruct import U64, CStruct
from ..operators import ops
from ..operators.user_op import no_arithmetic
from .reach import Reach

COMPARE_AND_SWAP = "CompareAndSwap"  # used in place of an operator
OF_ONE_ELEMENT = ("Fetch_and_op", "Compare_and_swap")
_FILE, _KERNEL, _NEST_KERNEL = "windows/rma.cu", "accumulate", "accumulate_nests"
_MOST_THREADS, _BLOCKS_PER_CHANNEL = 256, 4  # not measured
_BITWISE = {MPI.REPLACE.handle: "Replace", MPI.NO_OP.handle: "NoOp"}
_WITHOUT_RESULT = ("Accumulate", "Raccumulate")

# An operator that computes, or the name of an operation that replaces or compares bits.
_Functor = ops.BuiltinOp | str


@dataclass(slots=True, kw_only=True)
class RmaArgs(CStruct):
    """`RmaArgs` of cuda/windows/rma.cu; all but the count are addresses."""

    origin: U64
    compare: U64  # equal to origin if nothing is compared
    result: U64  # 0 if old elements are not returned
    target: U64
    count: U64


@dataclass(slots=True, kw_only=True)
class RmaNestArgs(CStruct):
    """The fields of `RmaNestArgs` (cuda/windows/rma.cu) after `target`."""

    result: U64  # address; 0 if old elements are not returned


def functor_of(operation: str, op: Any) -> _Functor:
    """Return the kernel's functor for an operator of MPI, or for COMPARE_AND_SWAP.

    Raises
    ------
    TypeError
        `op` is no operator.
    MPI.Exception
        Class ERR_OP, if `op` is not one of MPI's own, or is NO_OP in an operation that returns no elements.
    """
    if op == COMPARE_AND_SWAP:
        return COMPARE_AND_SWAP
    found: Any = ops.of(op, operation) if not isinstance(op, MPI.Op) else _BITWISE.get(op.handle, ops.predefined(op))
    if found == "NoOp" and operation in _WITHOUT_RESULT:
        raise MPIError(MPI.ERR_OP, f"{operation}: op is MPI.NO_OP, which takes a result; call Get_accumulate")
    if isinstance(found, str) or (isinstance(found, ops.BuiltinOp) and found.mpi is not None):
        return found
    raise MPIError(MPI.ERR_OP, f"{operation}: op is {op!r}; it must be one of MPI's own")


def is_ignored(operation: str, op: Any, origin: Any) -> bool:
    """Return whether an operation ignores its origin.

    In operations on one element, mpi4py checks the origin nevertheless if it is an array.
    """
    if op != MPI.NO_OP or origin is None:
        return False
    array = origin[0] if isinstance(origin, (list, tuple)) and origin else origin
    return operation not in OF_ONE_ELEMENT or array is MPI.BOTTOM


def in_elements(operation: str, buffer: Buffer) -> Buffer:
    """Return a buffer with the datatype and number of its predefined elements.

    Raises
    ------
    MPI.Exception
        Class ERR_ARG, if a derived datatype has elements of several datatypes.
    """
    if not isinstance(buffer, TypedBuffer):
        return buffer
    element = buffer.typed.parts[0].typemap.element
    if element is None:
        raise MPIError(MPI.ERR_ARG, f"{operation}: a derived datatype has elements of several datatypes; use one")
    return without_gaps(replace(buffer, datatype=element, count=buffer.nbytes // element.itemsize))


def check_count(operation: str, buffers: dict[str, Buffer]) -> None:
    """Raise ValueError, like mpi4py, unless buffers for one element have one element."""
    if operation in OF_ONE_ELEMENT:
        for name, buffer in buffers.items():
            if buffer.count != 1:
                raise ValueError(f"{operation}: {name} has {buffer.count} elements, expecting a single one")


def change(
    reach: Reach,
    operation: str,
    functor: _Functor,
    target: Buffer,
    *,
    origin: Buffer,
    result: Buffer | None = None,
    compare: Buffer | None = None,
) -> Any:
    """Enqueue an atomic update of elements in a rank's memory; return the stream.

    Raises
    ------
    TypeError
        If the elements have no arithmetic: text, dates, records.
    ValueError
        If the buffers differ in datatype or count.
    MPI.Exception
        If target and origin differ in datatype (ERR_ARG), or the operator is not defined on it (ERR_OP).
    NotSupported
        If the elements cannot be updated atomically: they have more than 8 bytes, are not aligned, or are not reachable
        over NVLink.
    """
    buffers = tuple(buffer for buffer in (origin, result, compare) if buffer is not None)
    _check_equal(operation, buffers, target)
    template = _template(operation, functor, origin)
    reach.team.require_links(operation)
    if not _is_aligned(reach.device, target):
        raise NotSupported(f"{operation}: an address in the target is no multiple of the element's length; move it")
    stream = reach.stream_for_change(*buffers)
    if any(isinstance(buffer, TypedBuffer) for buffer in buffers):
        reach.check_allocates(operation, stream)
    if isinstance(origin, TypedBuffer):
        origin.pack(reach, stream)
    if isinstance(result, TypedBuffer):
        result.allocate(reach.device, stream)
    compared, fetched = (compare or origin).address, result.address if result else 0
    arguments = RmaArgs(
        origin=origin.address, compare=compared, result=fetched, target=target.address, count=target.count
    )
    if isinstance(target, TypedBuffer):
        _launch_nests(reach, template, arguments, target, stream)
    elif target.count:
        _launch(reach.device, template, arguments, stream)
    if isinstance(result, TypedBuffer):
        result.unpack(reach, stream)
    return stream


def _check_equal(operation: str, buffers: tuple[Buffer, ...], target: Buffer) -> None:
    """Raise unless all buffers have the datatype and count of the first (origin)."""
    origin = buffers[0]
    for buffer in buffers[1:]:
        if buffer.datatype is not origin.datatype or buffer.count != origin.count:
            raise ValueError(f"{operation}: origin, result and compare differ in datatype or count; make them equal")
    if target.datatype is not origin.datatype:
        text = f"origin has elements of {origin.datatype.name}, target of {target.datatype.name}; make them equal"
        raise MPIError(MPI.ERR_ARG, f"{operation}: {text}")


def _is_aligned(device: Device, target: Buffer) -> bool:
    """Return whether the addresses of all elements are multiples of their length."""
    nbytes = target.datatype.itemsize
    if isinstance(target, TypedBuffer):
        return packing_of(device).is_aligned(target.typed.parts, target.typed.buffer.address, nbytes)
    return target.address % nbytes == 0


def _launch_nests(reach: Reach, template: tuple[str, ...], args: RmaArgs, target: TypedBuffer, stream: Any) -> None:
    """Launch the kernel for a target with gaps."""
    function = kernels.load_template(reach.device, _FILE, _NEST_KERNEL, *template)
    parts, memory, nbytes = target.typed.parts, target.typed.buffer.address, target.datatype.itemsize
    rest = RmaNestArgs(result=args.result).pack()
    packing = packing_of(reach.device)
    for launch in packing.launches_by_element(function, parts, memory, args.origin, stream, nbytes):
        reach.enqueue(*launch[:3], launch.parameters + rest, stream)


def _launch(device: Device, template: tuple[str, ...], arguments: RmaArgs, stream: Any) -> None:
    threads = min(device.threads, _MOST_THREADS)
    grid = min(-(-arguments.count // threads), _BLOCKS_PER_CHANNEL * device.max_channels)
    device.launch(kernels.load_template(device, _FILE, _KERNEL, *template), grid, threads, arguments.pack(), stream)


def _template(operation: str, functor: _Functor, origin: Buffer) -> tuple[str, ...]:
    """Return the template arguments of the kernel: the elements' type and the functor.

    Raise an exception for elements that kernels cannot change atomically.
    """
    datatype = origin.datatype
    if datatype.kind == "void":
        raise no_arithmetic(operation)
    if datatype.itemsize > sources.MOST_ATOMIC_NBYTES:
        raise NotSupported(
            f"{operation}: {datatype.name} has {datatype.itemsize} bytes, and GPUs change at most 8 atomically; Get, "
            "and Put under an exclusive lock"
        )
    if isinstance(functor, str):
        return sources.WORDS[datatype.itemsize], functor
    return ops.template(operation, functor, origin)
