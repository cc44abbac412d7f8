"""Buffer arguments: every form that mpi4py accepts is accepted, every bad one refused with mpi4py's exception."""

import warnings

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays import vectors
from pyncclx.arrays.datatypes import TABLE
from pyncclx.arrays.readers import in_c_order
from pyncclx.errors import NotSupported
from support.fake_arrays import HOST, NAME, DlpackArray, InterfaceArray, resolve, vector

pytestmark = pytest.mark.usefixtures("on_the_host_device")

A, TYPE = np.zeros(12), MPI.DOUBLE
READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False
BAD = {
    "nothing": None,
    "integer": 3,
    "text": "abc",
    "object": object(),
    "dictionary": {},
    "empty list": [],
    "one item": [A],
    "five items": [A, 1, 0, TYPE, 1],
    "negative count": [A, -1],
    "fractional count": [A, 1.5],
    "count of three": [A, (1, 2, 3)],
    "count of one": [A, [1]],
    "array as count": [A, np.array([3])],
    "dtype as count": [A, np.dtype("f8")],
    "negative displ": [A, 1, -1, TYPE],
    "displ past the end": [A, 1, 13, TYPE],
    "fractional displ": [A, 1, 0.5, TYPE],
    "unknown code": [A, "zz"],
    "digit as code": [A, "1"],
    "integer as type": [A, 1, 5],
    "class as type": [A, 1, np.float64],
    "null type": [A, MPI.DATATYPE_NULL],
    "null type and count": [A, 1, MPI.DATATYPE_NULL],
    "no array, no type": [None, 0],
    "no array, but a count": [None, 3, TYPE],
    "object as array": [object(), 1],
    "integer as array": [3, 1, TYPE],
    "list as array": [[1, 2], 1],
    "part of an element": [np.zeros(3, "u1"), MPI.INT],
    "part of a pair": [np.zeros(7), MPI.DOUBLE_INT],
    "read-only": READ_ONLY,
    "read-only in a list": [READ_ONLY, TYPE],
    "read-only interface": InterfaceArray(np.zeros(4), data=(A.ctypes.data, True)),
    "read-only dlpack": DlpackArray(READ_ONLY),
    "gaps": A[::2],
    "backwards": A[::-1],
    "gaps, interface": InterfaceArray(A[::2]),
    "backwards, interface": InterfaceArray(A[::-1]),
    "gaps, dlpack": DlpackArray(A[::2]),
    "byte order": np.zeros(4, ">f4"),
    "byte order, interface": InterfaceArray(np.zeros(4, ">f4")),
    "byte order, dlpack": DlpackArray(np.zeros(4, ">f4")),
    "unclear byte order": InterfaceArray(A, typestr="!f8"),
    "mask": InterfaceArray(A, mask=np.zeros(12)),
    "negative length": InterfaceArray(A, shape=(-12,)),
    "no address": InterfaceArray(A, data=(None, False)),
    "objects": np.zeros(4, "O"),
    "list as type": [A, 12, [TYPE]],
    "type before count": [A, TYPE, [12]],
    "object as type": [A, 12, object()],
}
BAD_VECTORS = {
    "nothing": None,
    "one item": [A],
    "too many counts": [A, [1, 2]],
    "too few counts": [A, []],
    "tuple of one": [A, (1,)],
    "tuple of three": [A, ([1], [0], 1)],
    "tuple of one, typed": [A, (1,), TYPE],
    "fractional counts": [A, [1.5]],
    "fractional count": [A, 1.5],
    "array in counts": [A, [np.array([1])]],
    "unknown code": [A, "zz"],
    "dictionary as type": [A, [12], {}],
    "type before counts": [A, TYPE, [12]],
    "object as type": [A, [12], object()],
    "no array, no type": [None, [0]],
    "too many displs": [A, ([1], [0, 0])],
    "part of an element": [np.zeros(3, "u1"), MPI.INT],
}


def error_of(call, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(*arguments)
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize("spec", BAD.values(), ids=BAD)
def test_bad_buffers_raise_what_mpi4py_raises(spec):
    expected = error_of(lambda: MPI.COMM_SELF.Sendrecv(b"", 0, recvbuf=spec, source=0))
    got = error_of(resolve, spec)
    assert expected is not None
    assert isinstance(got, type(expected)), f"{expected!r} against {got!r}"
    if isinstance(expected, MPI.Exception):
        assert got.Get_error_class() == expected.Get_error_class()


@pytest.mark.parametrize("spec", BAD_VECTORS.values(), ids=BAD_VECTORS)
def test_bad_vectors_raise_what_mpi4py_raises(spec):
    expected = error_of(lambda: MPI.COMM_SELF.Allgatherv(np.zeros(0), spec))
    got = error_of(vector, spec)
    assert expected is not None
    assert isinstance(got, type(expected)), f"{expected!r} against {got!r}"


@pytest.mark.parametrize("spec", [[A, [-1]], [A, -1]])
def test_negative_counts_are_mpis_own_error(spec):
    with pytest.raises(MPI.Exception, match="negative") as caught:
        vector(spec)
    assert caught.value.Get_error_class() == MPI.ERR_COUNT
    refused = error_of(lambda: MPI.COMM_SELF.Alltoallv([A, [-1]], [A, [0]]))
    assert refused.Get_error_class() == MPI.ERR_COUNT


@pytest.mark.parametrize(
    ("spec", "count", "displ", "name"),
    [
        ([A, TYPE], 12, 0, "float64"),
        ([A, "d"], 12, 0, "float64"),
        ([A, "f4"], 24, 0, "float32"),
        ([A, "bf16"], 48, 0, "bfloat16"),
        ((A, 5), 5, 0, "float64"),
        ([A, None], 12, 0, "float64"),
        ([A, True], 1, 0, "float64"),
        ([A, np.int64(3)], 3, 0, "float64"),
        ([A, np.array(3), TYPE], 3, 0, "float64"),
        ([A, (5, 2)], 5, 2, "float64"),
        ([A, [5, 2], TYPE], 5, 2, "float64"),
        ([A, (None, 2)], 10, 2, "float64"),
        ([A, 5, 2, TYPE], 5, 2, "float64"),
        ([A, 0, 12, TYPE], 0, 12, "float64"),
        ([A, None, 4, "i4"], 20, 4, "int32"),
        ([A, MPI.DOUBLE_INT], 6, 0, "double_int"),
        ([A, MPI.BYTE], 96, 0, "uint8"),
        ([np.zeros(7, ">f4"), "f4"], 7, 0, "float32"),
        ([np.zeros(3, "u1"), 0, MPI.INT], 0, 0, "int32"),
    ],
)
def test_specs(spec, count, displ, name):
    buffer = resolve(spec)
    assert (buffer.count, buffer.datatype.name) == (count, name)
    assert buffer.address == spec[0].ctypes.data + displ * buffer.datatype.itemsize


@pytest.mark.parametrize("spec", [[None, 0, TYPE], [None, TYPE], [MPI.BOTTOM, 0, TYPE]])
def test_no_array_and_no_elements(spec):
    buffer = resolve(spec)
    assert (buffer.address, buffer.count, buffer.datatype) == (0, 0, TABLE["float64"])


def test_elements_must_fit_the_array():
    for spec in ([A, 13], [A, 1, 12, TYPE], [A, 25, "f4"]):
        with pytest.raises(ValueError, match="larger array"):
            resolve(spec)
    for spec in ([A, ([1], [12])], [A, [13]], [A, ([1], [-1])], [None, [2], TYPE]):
        with pytest.raises(ValueError, match="larger array"):
            vector(spec)
    with pytest.raises(NotSupported, match="BOTTOM"):
        resolve([MPI.BOTTOM, 2, TYPE])


def test_blocks_divide_the_count():
    assert resolve(A, blocks=4).count == resolve([A, TYPE], blocks=4).count == 3
    assert resolve([A, 2], blocks=4).count == 2
    for spec in (A, [A, TYPE], [A, 4]):
        with pytest.raises(ValueError, match=r"5 ranks|each of 5 blocks"):
            resolve(spec, blocks=5)


def test_read_only_arrays_can_be_sent():
    for array in (READ_ONLY, DlpackArray(READ_ONLY), InterfaceArray(READ_ONLY)):
        assert resolve(array, writable=False).readonly


@pytest.mark.parametrize("wrap", [np.asarray, InterfaceArray])
@pytest.mark.parametrize("dtype", ["V2", "S5", "U3", [("a", "f4"), ("b", "i8")], ml_dtypes.float8_e4m3fn])
def test_counts_of_elements_without_arithmetic(wrap, dtype):
    """A count is of records, dates, texts: not of their bytes."""
    array = np.zeros(4, dtype)
    whole, part = resolve(wrap(array)), resolve([wrap(array), 2])
    assert (whole.count, whole.nbytes, whole.datatype.itemsize) == (4, array.nbytes, array.itemsize)
    assert (part.count, part.address, part.nbytes) == (2, array.ctypes.data, 2 * array.itemsize)
    assert vector([wrap(array), [1, 2]], 2)[1:] == ([1, 2], [0, 1])
    assert resolve([wrap(array), MPI.BYTE]).count == array.nbytes
    with pytest.raises(ValueError, match="4 elements"):
        resolve([wrap(array), 5])


def test_rows():
    """Their number follows from the part that a spec names; what is not whole rows is refused."""
    array = np.zeros((6, 2, 2))
    for spec, shape in (
        (array, (6, 2, 2)),
        ([array, TYPE], (6, 2, 2)),
        ([array, "i8"], (6, 2, 2)),
        ([array, 8], (2, 2, 2)),
        ([array, (8, 12), TYPE], (2, 2, 2)),
        ([array, 0], (0, 2, 2)),
        ([A, (5, 3)], (5,)),
        ([A[:1].reshape(()), 1], ()),
        ([A[:0].reshape(0, 2), 0], (0, 2)),
    ):
        assert resolve(spec, rows=True).shape == shape
    assert resolve([array, 2], rows=True, blocks=4).shape == (2, 2, 2)
    for spec, match in (
        ([array, 6], "whole rows, of 4"),
        ([array, (4, 2), TYPE], "whole rows"),
        ([array, MPI.FLOAT], "elements of 8 bytes and the datatype float32 of 4"),
        ([array, MPI.BYTE], "rows are not defined"),
        ([array, 4, MPI.DOUBLE_INT], "rows are not defined"),
        ([A.view("u1"), "f8"], "rows are not defined"),
    ):
        with pytest.raises(ValueError, match=match):
            resolve(spec, rows=True)
    assert resolve([array, 6, 2, TYPE]).count == 6  # an operation without rows takes it


@pytest.mark.parametrize("wrap", [np.asarray, memoryview, InterfaceArray, DlpackArray])
def test_order(wrap):
    """Readers take Fortran order; operations that have rows can ask for C order."""
    c_order = np.arange(6.0).reshape(2, 3)
    for array, expected in ((c_order, True), (c_order.T, False), (c_order[:1].T, True), (c_order[:0].T, True)):
        assert in_c_order(resolve(wrap(array), writable=False).owner) == expected


def test_vectors():
    assert vector(A, 5)[1:] == ([3, 3, 2, 2, 2], [0, 3, 6, 8, 10])
    assert vector([A, "f4"], 2)[1:] == ([12, 12], [0, 12])
    assert vector([A, 3], 4)[1:] == ([3, 3, 3, 3], [0, 3, 6, 9])
    assert vector([A, [1, 2]], 2)[1:] == ([1, 2], [0, 1])
    assert vector([A, np.array([1, 2])], 2)[1:] == ([1, 2], [0, 1])
    assert vector([A, ([1, 2], 6)], 2)[1:] == ([1, 2], [0, 6])
    assert vector([A, ([1, 2], [4, 0]), TYPE], 2)[1:] == ([1, 2], [4, 0])
    assert vector([A, (2, 6), TYPE], 2)[1:] == ([2, 2], [0, 6])
    assert vector([A, [1, 2], [4, 0], "d"], 2)[1:] == ([1, 2], [4, 0])
    assert vector([A, ([0, 2], [99, 0])], 2)[1:] == ([0, 2], [99, 0])
    assert vector([None, [0, 0], TYPE], 2)[1:] == ([0, 0], [0, 0])
    assert vector([A, [1, 2]], 2)[0].count == 12


def test_counts_on_the_device():
    counts, displs = np.array([3, 4]), np.array([0, 6])
    _, got, places = vector([A, InterfaceArray(counts)], 2)
    assert (got.address, got.count, got.datatype) == (counts.ctypes.data, 2, TABLE["int64"])
    assert places is None
    _, got, places = vector([A, (InterfaceArray(counts), DlpackArray(displs))], 2)
    assert (got.address, places.address) == (counts.ctypes.data, displs.ctypes.data)
    assert vector([A, (InterfaceArray(counts), 6), TYPE], 2)[2] == [0, 6]
    with pytest.raises(TypeError, match=r"counts is a device array of int32.*astype"):
        vector([A, InterfaceArray(counts.astype("i4"))], 2)
    with pytest.raises(ValueError, match="counts has 2 items, expecting 3"):
        vector([A, InterfaceArray(counts)], 3)


def test_dynamic_counts_may_be_any_device_array():
    counts, displs = np.array([3, 4]), np.array([0, 6])

    def dynamic(spec, writable=False):
        return vectors.resolve_dynamic(spec, NAME, 2, writable=writable, device=HOST)

    buffer, got, places = dynamic([A, (counts, InterfaceArray(displs))])
    assert (buffer.count, got.address, places.address) == (12, counts.ctypes.data, displs.ctypes.data)
    assert dynamic(A)[1:] == dynamic([A, TYPE])[1:] == (None, None)
    with pytest.raises(BufferError, match="counts is read-only"):
        dynamic([A, InterfaceArray(counts, data=(counts.ctypes.data, True))], writable=True)
