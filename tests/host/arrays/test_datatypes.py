"""The table of element types agrees with NumPy, with C and with this MPI."""

import pickle

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays import datatypes
from pyncclx.arrays.datatypes import MOVED_ONLY, TABLE
from pyncclx.errors import NotSupported

ml_dtypes = pytest.importorskip("ml_dtypes")

SCALARS = [name for name, row in TABLE.items() if row.kind != "pair" and name != "bfloat16"]
ROWS = [*TABLE.values(), *MOVED_ONLY.values()]
PREDEFINED = [
    name
    for name, mpi in vars(MPI).items()
    if isinstance(mpi, MPI.Datatype) and mpi != MPI.DATATYPE_NULL and mpi.Get_size() > 0
]


@pytest.mark.parametrize("name", SCALARS)
def test_numpy_dtype_class_and_name(name):
    row = TABLE[name]
    dtype = np.dtype(name)
    assert datatypes.of(dtype) is datatypes.of(dtype.type) is datatypes.of(name) is datatypes.of(row) is row
    assert row.itemsize == dtype.itemsize
    assert datatypes.of(dtype) is row  # from the cache now


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_itemsize_is_the_mpi_extent(row):
    if row.mpi is not None:
        assert row.itemsize == row.mpi.extent
        assert datatypes.of(row.mpi) is row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_stay_unique_through_pickling_and_are_keys(row):
    assert pickle.loads(pickle.dumps(row)) is row
    assert {row: 1}[row] == 1


@pytest.mark.parametrize("name", PREDEFINED)
def test_every_predefined_mpi_datatype_maps_by_size(name):
    mpi = getattr(MPI, name)
    row = datatypes.of(mpi)
    assert row.itemsize == mpi.extent
    dtype = np.dtype(mpi.typestr)
    if dtype.kind in "iufcb":
        assert row.name == dtype.name


@pytest.mark.parametrize("code", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "f", "d", "F", "D"])
def test_mpi4py_codes(code):
    assert datatypes.of(code) is TABLE[np.dtype(code).name]


@pytest.mark.parametrize("code", ["i1", "u2", "i4", "f4", "f8", "c8", "c16", "b1"])
def test_mpi4py_typestrings(code):
    assert datatypes.of(code) is TABLE[np.dtype(code).name]


def test_bfloat16_by_every_road():
    row = TABLE["bfloat16"]
    torch_dtype = type("dtype", (), {"__module__": "torch", "__repr__": lambda self: "torch.bfloat16"})()
    for key in ("bf16", "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), torch_dtype):
        assert datatypes.of(key) is row


@pytest.mark.parametrize("key", ["V2", "S1", "S5", "U3", "M8[s]", [("a", "f4"), ("b", "i4")], ml_dtypes.float8_e4m3fn])
def test_elements_of_other_types_have_their_length_and_no_arithmetic(key):
    row, nbytes = datatypes.of(np.dtype(key)), np.dtype(key).itemsize
    assert (row.itemsize, row.cxx, row.kind, row.name) == (nbytes, "", "void", f"void{8 * nbytes}")
    assert row is datatypes.of(np.dtype(f"V{nbytes}")) is pickle.loads(pickle.dumps(row))


@pytest.mark.parametrize("key", ["V0", []])
def test_elements_without_bytes_are_refused(key):
    with pytest.raises(KeyError, match="no bytes"):
        datatypes.of(np.dtype(key))


@pytest.mark.parametrize("key", [">f4", ">i8", ">U3", np.dtype([("a", ">i4"), ("b", "<f8")], align=True)], ids=str)
def test_the_other_byte_order_comes_with_its_cure(key):
    array = np.zeros(3, key)
    with pytest.raises(BufferError, match="non-native") as raised:
        datatypes.of(array.dtype)
    native = eval(str(raised.value).partition("convert with ")[2], {"array": array})
    assert native.dtype == array.dtype.newbyteorder("=")


def test_bytes_and_characters():
    assert datatypes.of(MPI.BYTE) is datatypes.of(MPI.PACKED) is TABLE["uint8"]
    assert datatypes.of(MPI.CHAR) is TABLE["int8"]


def test_duplicates_are_their_originals():
    once = MPI.DOUBLE.Dup()
    twice = once.Dup()
    assert datatypes.of(once) is datatypes.of(twice) is TABLE["float64"]
    once.Free()
    twice.Free()


def test_a_reused_handle_is_not_remembered():
    # A freed derived handle may come back as another type; each answer must be of the type that is there now.
    for base in (MPI.INT, MPI.DOUBLE, MPI.CHAR) * 3:
        duplicate = base.Dup()
        assert datatypes.of(duplicate) is datatypes.of(base)
        duplicate.Free()


def test_refusals():
    vector = MPI.INT.Create_vector(2, 1, 2)
    with pytest.raises(NotSupported, match="contiguous"):
        datatypes.of(vector)
    vector.Free()
    with pytest.raises(MPI.Exception) as caught:
        datatypes.of(MPI.DATATYPE_NULL)
    assert caught.value.Get_error_class() == MPI.ERR_TYPE
    for key in ("zz", "<f4", 5, np.dtype("O")):
        with pytest.raises(KeyError, match="cannot map"):
            datatypes.of(key)
    with pytest.raises(BufferError, match="byte order"):
        datatypes.of(np.dtype(">f4"))
