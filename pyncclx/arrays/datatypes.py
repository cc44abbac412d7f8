"""Table of element types: NumPy dtype, MPI datatype, and C++ type of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import DerivedDatatype, MPIError


@dataclass(frozen=True, slots=True, eq=False)
class Datatype:
    """Row of the table of element types.

    Rows are unique objects: compare them with ``is``, and use them as dictionary keys.

    Attributes
    ----------
    name : str
        NumPy's name, or the MPI name in lower case for pairs.
    cxx : str
        Type in kernels; empty if there is none and elements can only be moved.
    itemsize : int
        Bytes from one element to the next. This is the MPI extent: pairs are padded as in C.
    kind : {"integer", "float", "complex", "bool", "pair", "opaque", "void"}
        Decides which reductions accept it. For "void" elements, only the length is known.
    mpi : MPI.Datatype or None
        None where this MPI has no such type.
    """

    name: str
    cxx: str
    itemsize: int
    kind: str
    mpi: MPI.Datatype | None

    def __reduce__(self) -> tuple[Callable[[str], Datatype], tuple[str]]:
        # Unpickling returns the table's row, so that `is` works on every rank.
        return _row, (self.name,)


def _present(mpi: MPI.Datatype) -> MPI.Datatype | None:
    return None if mpi == MPI.DATATYPE_NULL else mpi


def _table(*rows: Datatype) -> Mapping[str, Datatype]:
    return {row.name: row for row in rows}


# name, cxx, itemsize, kind, mpi
TABLE = _table(
    Datatype("int8", "signed char", 1, "integer", MPI.INT8_T),
    Datatype("uint8", "unsigned char", 1, "integer", MPI.UINT8_T),
    Datatype("int16", "short", 2, "integer", MPI.INT16_T),
    Datatype("uint16", "unsigned short", 2, "integer", MPI.UINT16_T),
    Datatype("int32", "int", 4, "integer", MPI.INT32_T),
    Datatype("uint32", "unsigned", 4, "integer", MPI.UINT32_T),
    Datatype("int64", "long long", 8, "integer", MPI.INT64_T),
    Datatype("uint64", "unsigned long long", 8, "integer", MPI.UINT64_T),
    Datatype("float16", "Half", 2, "float", _present(MPI.FLOAT16_T)),
    Datatype("bfloat16", "Bfloat16", 2, "float", _present(MPI.BFLOAT16_T)),
    Datatype("float32", "float", 4, "float", MPI.FLOAT),
    Datatype("float64", "double", 8, "float", MPI.DOUBLE),
    Datatype("complex64", "Complex<float>", 8, "complex", MPI.C_FLOAT_COMPLEX),
    Datatype("complex128", "Complex<double>", 16, "complex", MPI.C_DOUBLE_COMPLEX),
    Datatype("bool", "bool", 1, "bool", MPI.C_BOOL),
    Datatype("float_int", "Pair<float>", 8, "pair", MPI.FLOAT_INT),
    Datatype("double_int", "Pair<double>", 16, "pair", MPI.DOUBLE_INT),
    Datatype("long_int", "Pair<long long>", 16, "pair", MPI.LONG_INT),
    Datatype("int_int", "Pair<int>", 8, "pair", MPI.INT_INT),
    Datatype("short_int", "Pair<short>", 8, "pair", MPI.SHORT_INT),
)

# The host's long double has no counterpart on a GPU. Such elements, and those of `void`, can be sent but not added.
MOVED_ONLY = _table(
    Datatype("float128", "", 16, "opaque", MPI.LONG_DOUBLE),
    Datatype("complex256", "", 32, "opaque", MPI.C_LONG_DOUBLE_COMPLEX),
    Datatype("longdouble_int", "", 32, "opaque", MPI.LONG_DOUBLE_INT),
)

_ALIASES = {"bf16": "bfloat16"}
# Results of mpi4py's `typestr` that NumPy would read as other types, with their datatypes.
_CHARACTERS = {"S1": "int8", "U1": "uint32", "V32": "longdouble_int"}

# The prefix of a name; the number of bits of an element follows, as in NumPy's names.
_VOID = "void"
_voids: dict[int, Datatype] = {}  # key: bytes of an element
_known: dict[Any, Datatype] = {}  # key: NumPy dtype, torch dtype, class or string
_by_handle = {row.mpi.handle: row for row in (*TABLE.values(), *MOVED_ONLY.values()) if row.mpi is not None}


def of(key: Any) -> Datatype:
    """Return the datatype for a key.

    Parameters
    ----------
    key : Datatype, numpy.dtype, MPI.Datatype, torch.dtype, scalar class or str
        Strings are mpi4py's codes ("f4", "d"), the table's names and "bf16". Legacy and Fortran MPI types map to types
        of the same size, `MPI.BYTE` to "uint8", and NumPy's void, structured, text and date types to `void`.

    Raises
    ------
    KeyError
        No datatype has that name, or its elements have no bytes.
    BufferError
        The NumPy dtype has the other byte order.
    MPI.Exception
        The key is ``MPI.DATATYPE_NULL`` (class ERR_TYPE).
    DerivedDatatype
        The key is a derived MPI datatype. The exception is a subclass of NotSupported.
    """
    # MPI datatypes have no hash.
    if isinstance(key, MPI.Datatype):
        return _by_handle.get(key.handle) or _of_mpi(key)
    if isinstance(key, Datatype):
        return key
    return _known.get(key) or _remember(key)


def predefined(mpi: MPI.Datatype) -> Datatype | None:
    """Return the row of a predefined MPI datatype; None for a derived one.

    Return None also for a legacy datatype that has not been passed to `of` yet.
    """
    return _by_handle.get(mpi.handle)


def void(itemsize: int) -> Datatype:
    """Return the datatype of elements of this many bytes that can only be moved.

    Such elements are records, text, dates, or 8-bit floats.
    """
    found = _voids.get(itemsize)
    # Two threads may make the row at once; both get the one that is stored first.
    return found or _voids.setdefault(itemsize, Datatype(f"{_VOID}{8 * itemsize}", "", itemsize, "void", None))


def _row(name: str) -> Datatype:
    if name.startswith(_VOID):
        return void(int(name.removeprefix(_VOID)) // 8)
    return TABLE.get(name) or MOVED_ONLY[name]


def _remember(key: Any) -> Datatype:
    if isinstance(key, str):
        found = _of_code(key)
    elif isinstance(key, np.dtype):
        found = _of_numpy(key)
    elif isinstance(key, type):
        found = _of_numpy(np.dtype(key))
    elif type(key).__module__ == "torch":
        found = TABLE.get(str(key).removeprefix("torch.")) or void(key.itemsize)
    else:
        raise KeyError(f"cannot map {key!r} to a datatype; give an MPI datatype, or a string such as 'f4'")
    _known[key] = found
    return found


def _of_code(code: str) -> Datatype:
    name = _ALIASES.get(code, code)
    if name in TABLE:
        return TABLE[name]
    try:
        return _of_mpi(MPI.Datatype.fromcode(code))
    except ValueError:
        names = ", ".join((*TABLE, *_ALIASES))
        raise KeyError(f"cannot map {code!r} to a datatype; use mpi4py's codes or one of {names}") from None


def _of_numpy(dtype: np.dtype[Any]) -> Datatype:
    if not dtype.isnative:
        native = repr(dtype.newbyteorder("=").str) if dtype.names is None else "array.dtype.newbyteorder('=')"
        raise BufferError(f"dtype {dtype!s} has non-native byte order; convert with array.astype({native})")
    if dtype.hasobject:
        raise KeyError(f"cannot map {dtype!r} to a datatype; Python objects take the lower-case methods")
    if not dtype.itemsize:
        raise KeyError(f"cannot map {dtype!r} to a datatype; its elements have no bytes")
    return TABLE.get(dtype.name) or MOVED_ONLY.get(dtype.name) or void(dtype.itemsize)


def _of_mpi(mpi: MPI.Datatype) -> Datatype:
    found = _by_handle.get(mpi.handle)
    if found is not None:
        return found
    if mpi == MPI.DATATYPE_NULL:
        raise MPIError(MPI.ERR_TYPE, "the datatype is MPI.DATATYPE_NULL; name the array's element type")
    if mpi.is_predefined:
        typestr = mpi.typestr
        found = _row(_CHARACTERS.get(typestr) or np.dtype(typestr).name)
        # Handles of predefined datatypes are never reused; handles of derived ones are.
        _by_handle[mpi.handle] = found
        return found
    if mpi.combiner == MPI.COMBINER_DUP:
        original = mpi.decode()[0]
        try:
            return _of_mpi(original)
        finally:
            if not original.is_predefined:
                original.Free()
    raise DerivedDatatype(
        f"derived MPI datatypes (here of extent {mpi.extent}) do not work on device arrays in this operation; "
        "copy the elements into a contiguous array first and use its element type"
    )
