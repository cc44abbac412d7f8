"""Make keys of arguments, under which launches are cached.

Arguments that lead to the same launch have equal keys. The key of an array has its address, type, shape and strides,
but not the array itself: another array with the same memory leads to the same launch.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..arrays import datatypes, pointers
from ..arrays.places import host_arrays
from ..arrays.readers import read_cupy, read_numpy, read_torch, reader_of_class, torch_stream
from ..operators import ops
from ..operators.user_op import Op as UserOp
from ..system.driver import gpu_of_memory

#: Functions that return the key of a derived datatype, or None if it has none yet. `pyncclx.derived` adds one.
derived_keys: list[Callable[[MPI.Datatype], Hashable | None]] = []


class NoKey(Exception):
    """An argument has no key, so it must be checked in each call."""


def key_of_call(kind: Hashable, args: Iterable[Any], options: Mapping[str, Any]) -> Hashable:
    """Return the key of a call of this kind; None if an argument has no key."""
    key: list[Hashable] = [kind]
    try:
        for argument in itertools.chain(args, options.values()):
            key.append(MAKERS[type(argument)](argument))
    except NoKey:
        return None
    return tuple(key)


class MovableKey(NamedTuple):
    """A call's key in two forms: with and without the addresses of its arrays.

    Arrays of one library, type, shape and GPU lead to launches that differ in nothing but addresses. The second form
    does not contain the size of a view's base array, so `moved.py` checks that the call fits into it.

    Attributes
    ----------
    exact, elsewhere : hashable
        The key, and the key without addresses.
    arrays : list
    addresses : list of int
    """

    exact: Hashable
    elsewhere: Hashable
    arrays: list[Any]
    addresses: list[int]


def movable(key: Any, arguments: Iterable[Any]) -> MovableKey:
    """Return a key that was made from some arguments, and its form without addresses."""
    rest: list[Hashable] = [key[0]]
    arrays, addresses, seen = list[Any](), list[int](), list[int]()
    for argument, each in zip(arguments, key[1:], strict=True):
        array, of_array, others = argument, each, None
        if type(argument) in (list, tuple):
            array, of_array, others = argument[0], each[1], (each[0], each[3:])
        make = MAKERS[type(array)]
        gpu_of = _GPUS.get(make)
        if gpu_of is None:
            rest.append(each)
        else:
            # A call with one array as two arguments differs from a call with two equal arrays.
            seen.append(id(array))
            arrays.append(array)
            addresses.append(of_array[0])
            rest.append((make, seen.index(id(array)), gpu_of(array), of_array[1:], others))
    return MovableKey(key, tuple(rest), arrays, addresses)


def _itself(argument: Any) -> Hashable:
    return argument  # type: ignore[no-any-return]


def _none(argument: Any) -> Hashable:
    raise NoKey


def _of_torch(tensor: Any) -> Hashable:
    if tensor.is_cuda:
        stream = torch_stream(tensor.device.index)
    elif host_arrays():
        stream = None
    else:
        raise NoKey
    special = tensor.requires_grad, tensor.is_conj(), tensor.is_neg()
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), stream, special


def _of_numpy(array: np.ndarray[Any, Any]) -> Hashable:
    # MPI.Get_address rejects an array with gaps. The operation will raise the exception.
    if not array.flags.forc:
        raise NoKey
    if not host_arrays() and not pointers.is_over_device(array):
        raise NoKey
    return MPI.Get_address(array), array.dtype, array.shape, array.strides, array.flags.writeable


def _of_buffer(buffer: MPI.buffer) -> Hashable:
    gpu = None
    if host_arrays():
        # A buffer made from an address has no owner, so the search for one is left out.
        if buffer.obj is not None and pointers.is_of_host(buffer):
            raise NoKey
    else:
        gpu = gpu_of_memory(buffer.address)
        if gpu is None:
            raise NoKey
    return buffer.address, buffer.nbytes, buffer.readonly, gpu


def _of_spec(spec: Any) -> Hashable:
    """Return the key of an array with counts, displacements and a datatype.

    Lists and tuples have different keys because they have different meanings. Counts and datatypes may reach from a
    view into the rest of its base array, so the key of a view contains where it lies in that.
    """
    if not spec:
        raise NoKey
    array = spec[0]
    make = MAKERS[type(array)]
    of_array: Any = make(array)
    margins: Any = None
    if make is _of_torch:
        storage = array.untyped_storage()
        margins = of_array[0] - storage.data_ptr(), storage.nbytes()
    # Arrays that are not views have no base, and an `MPI.buffer` made from an address has no object.
    elif make in _GPUS and getattr(array, "obj" if make is _of_buffer else "base") is not None:
        margins = pointers.margins_of(array, of_array[0])
    key: list[Hashable] = [isinstance(spec, list), of_array, margins]
    for value in spec[1:]:
        key.append(VALUES[type(value)](value))
    return tuple(key)


def _of_values(values: Any) -> Hashable:
    if _INT.issuperset(map(type, values)):
        return isinstance(values, list), *values
    return isinstance(values, list), *[VALUES[type(each)](each) for each in values]


def _of_numbers(numbers: np.ndarray[Any, Any]) -> Hashable:
    """Return the key of counts on the host, which contains the numbers."""
    # An array of objects holds addresses; the objects at these addresses may change.
    if numbers.dtype.hasobject:
        raise NoKey
    # Numbers with gaps are read on the host, so their address is not needed.
    address = MPI.Get_address(numbers) if numbers.flags.forc else None
    return address, numbers.dtype, numbers.shape, numbers.strides, numbers.tobytes()


def _of_datatype(datatype: MPI.Datatype) -> Hashable:
    key: Hashable = datatypes.predefined(datatype)
    if key is None:
        key = next(filter(None, (find(datatype) for find in derived_keys)), None)
    if key is None:
        raise NoKey
    return key


def _of_operator(operator: MPI.Op) -> Hashable:
    builtin = ops.predefined(operator)
    if builtin is None:
        raise NoKey
    return builtin


_Maker = Callable[[Any], Hashable]
_of_cupy: _Maker = operator.attrgetter("data.ptr", "dtype", "shape", "strides")
_BY_READER: dict[Any, _Maker] = {read_cupy: _of_cupy, read_torch: _of_torch, read_numpy: _of_numpy}
# Functions that return the GPU of an array, by the function that returns its key.
_GPUS: dict[_Maker, Callable[[Any], Hashable]] = {
    _of_cupy: operator.attrgetter("data.device_id"),
    _of_torch: operator.attrgetter("device.index"),
    _of_numpy: pointers.gpu_of,
    _of_buffer: type,  # its key has the GPU
}
_BY_CLASS: tuple[tuple[type, _Maker], ...] = (
    (MPI.Datatype, _of_datatype),
    (MPI.Op, _of_operator),
    *((kind, _itself) for kind in (datatypes.Datatype, ops.BuiltinOp, UserOp)),
)


class _Makers(dict[type, _Maker]):
    """Dictionary from an argument's type to the function that returns its key."""

    def __missing__(self, kind: type) -> _Maker:
        by_class = next((make for base, make in _BY_CLASS if issubclass(kind, base)), _none)
        self[kind] = _BY_READER.get(reader_of_class(kind), by_class)
        return self[kind]


class _ValueMakers(dict[type, _Maker]):
    """Dictionary from the type of a count or datatype to the function for its key."""

    def __missing__(self, kind: type) -> _Maker:
        by_class = ((list, _of_values), (tuple, _of_values), (np.ndarray, _of_numbers))
        self[kind] = next((make for base, make in by_class if issubclass(kind, base)), None) or MAKERS[kind]
        return self[kind]


_INT = frozenset({int})  # the type of nearly all counts
#: These functions run no Python code.
_AS_THEY_ARE: dict[type, _Maker] = {type(None): type, bool: bool, int: int, str: str}
#: Functions that return the key of an argument, by its type: array, buffer spec, operator, number, string or None. They
#: raise NoKey for other arguments, such as derived datatypes that no call has flattened, and arrays that only have an
#: array interface.
MAKERS = _Makers(_AS_THEY_ARE)
MAKERS |= {list: _of_spec, tuple: _of_spec, type(MPI.IN_PLACE): type, MPI.buffer: _of_buffer}
#: Functions that return the key of a count, displacement or datatype, by its type. The key of a host array contains its
#: numbers.
VALUES = _ValueMakers(_AS_THEY_ARE)
