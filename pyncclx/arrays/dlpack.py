"""Read DLPack capsules with ctypes, without importing the tensor's library."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

CPU, CUDA, CUDA_MANAGED = 1, 2, 13

# DLTensor: data, device type, device ordinal, ndim, dtype (code, bits, lanes), shape, strides, byte offset.
_TENSOR = struct.Struct("@PiiiBBHPPQ")
# DLManagedTensorVersioned begins with version (major, minor), manager, deleter and flags.
_HEADER = struct.Struct("@IIPPQ")
_READ_ONLY = 1
# Keys are DLDataTypeCode. Other codes (opaque handles, 8-bit floats and smaller) have no element type here.
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}

_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(slots=True)
class Tensor:
    """Tensor in a DLPack capsule.

    `name` is NumPy's name of the element type, or another name if NumPy has none. `strides` counts elements; None means
    C order. The capsule is never consumed: it keeps the memory alive until it is deleted.
    """

    address: int
    itemsize: int
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    readonly: bool
    capsule: object


def device_of(array: Any) -> tuple[int, int]:
    """Return the DLPack device type and ordinal of `array`."""
    kind, ordinal = array.__dlpack_device__()
    return int(kind), int(ordinal)


def read(array: Any, stream: int) -> Tensor:
    """Return the tensor that `array` exports.

    Parameters
    ----------
    array : object with `__dlpack__` and `__dlpack_device__`
    stream : int
        CUDA stream that waits for the producer's data; -1 for no wait.

    Raises
    ------
    BufferError
        If the producer refuses to export, or the capsule is of an unknown kind.
    """
    order = {} if device_of(array)[0] == CPU else {"stream": stream}
    try:
        capsule = array.__dlpack__(max_version=(1, 0), copy=False, **order)
    # Producers before DLPack 1.0 do not accept these arguments.
    except TypeError:
        capsule = array.__dlpack__(**order)
    tensor = exported(capsule)
    if tensor is None:
        raise BufferError(f"__dlpack__ returned {capsule!r}, expecting a capsule")
    return tensor


def exported(capsule: object) -> Tensor | None:
    """Return the tensor in a capsule; None for an object that is no DLPack capsule.

    Raises
    ------
    BufferError
        If the capsule is of an unknown version.
    """
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        pointer = _capsule_pointer(capsule, b"dltensor_versioned")
        major, minor, _, _, flags = _HEADER.unpack(ctypes.string_at(pointer, _HEADER.size))
        if major != 1:
            raise BufferError(f"DLPack version {major}.{minor} is not known, only 1.x and older")
        return _tensor(pointer + _HEADER.size, bool(flags & _READ_ONLY), capsule)
    if _capsule_is_valid(capsule, b"dltensor"):
        return _tensor(_capsule_pointer(capsule, b"dltensor"), False, capsule)
    return None


def _tensor(pointer: int, readonly: bool, capsule: object) -> Tensor:
    data, _, _, ndim, code, bits, lanes, shape, strides, offset = _TENSOR.unpack(
        ctypes.string_at(pointer, _TENSOR.size)
    )
    return Tensor(
        address=data + offset,
        itemsize=(bits * lanes + 7) // 8,
        name=_name(code, bits, lanes),
        shape=_integers(shape, ndim),
        strides=_integers(strides, ndim) if strides else None,
        readonly=readonly,
        capsule=capsule,
    )


def _name(code: int, bits: int, lanes: int) -> str:
    """Return NumPy's name of an element type.

    Two lanes of floats are a complex number, as in mpi4py.
    """
    name = _NAMES.get(code, "")
    if name == "float" and lanes == 2:
        return f"complex{2 * bits}"
    return name if name == "bool" else f"{name if lanes == 1 else ''}{bits}"


def _integers(pointer: int, length: int) -> tuple[int, ...]:
    return struct.unpack(f"@{length}q", ctypes.string_at(pointer, 8 * length)) if length else ()
