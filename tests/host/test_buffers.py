"""Buffer arguments: every kind of array is understood, every bad one refused as mpi4py refuses it."""

import ctypes
import types
import warnings

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import arrays, buffers, dlpack
from pyncclx.datatypes import TABLE
from pyncclx.devices import pointers
from pyncclx.errors import NotSupported

NAME = "Allreduce: recvbuf"


class FakeDevice:
    """A device that takes every address for its own, unless told otherwise."""

    def __init__(self, name="host", ordinal=0, stream=None, owns=True):
        self.name, self.ordinal, self.stream, self.owns = name, ordinal, stream, owns

    def current_stream(self):
        return self.stream

    def is_device_pointer(self, address):
        return self.owns


class InterfaceArray:
    """Host memory behind the CUDA array interface."""

    def __init__(self, array, **changes):
        self.array = array
        self.dtype = array.dtype
        address, readonly = array.__array_interface__["data"]
        self.__cuda_array_interface__ = {
            **{key: value for key, value in array.__array_interface__.items() if key != "descr"},
            "data": (address, readonly),
            "version": 3,
            **changes,
        }


class DlpackArray:
    """Host memory behind DLPack; `old` as producers did before version 1.0."""

    def __init__(self, array, old=False, device=None):
        self.array, self.old, self.device, self.asked = array, old, device, {}

    def __dlpack__(self, **options):
        self.asked = options
        if self.old and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**{key: value for key, value in options.items() if key != "stream"})

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()


def fake_cupy(array, ordinal=0):
    cls = type("ndarray", (), {"__module__": "cupy"})
    self = cls()
    self.data = types.SimpleNamespace(ptr=array.ctypes.data, device_id=ordinal)
    self.flags = types.SimpleNamespace(c_contiguous=array.flags.c_contiguous, f_contiguous=array.flags.f_contiguous)
    self.nbytes, self.dtype, self.shape, self.strides = array.nbytes, array.dtype, array.shape, array.strides
    return self


class FakeTensor:
    """What PyTorch offers, over NumPy memory."""

    __module__ = "torch"

    def __init__(self, array, dtype=None, cuda=True, ordinal=0, **flags):
        self.array = array
        name = f"torch.{dtype or array.dtype.name}"
        self.dtype = type("dtype", (), {"__module__": "torch", "__repr__": lambda self: name})()
        self.shape, self.is_cuda = array.shape, cuda
        self.device = types.SimpleNamespace(index=ordinal)
        self.requires_grad = flags.get("requires_grad", False)
        self.conj = flags.get("conj", False)

    def is_conj(self):
        return self.conj

    def is_neg(self):
        return False

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def data_ptr(self):
        return self.array.ctypes.data


FakeTensor.__name__ = "Tensor"
WRAPPERS = {
    "numpy": lambda array: array,
    "interface": InterfaceArray,
    "dlpack": DlpackArray,
    "old dlpack": lambda array: DlpackArray(array, old=True),
}
HOST = FakeDevice()
GPU = FakeDevice("gpu", ordinal=1)


@pytest.fixture(autouse=True)
def on_the_host_device(monkeypatch):
    monkeypatch.setenv("PYNCCLX_DEVICE", "host")
    arrays.host_arrays.cache_clear()
    yield
    arrays.host_arrays.cache_clear()


@pytest.fixture
def on_gpus(on_the_host_device, monkeypatch):
    monkeypatch.delenv("PYNCCLX_DEVICE")
    arrays.host_arrays.cache_clear()


def resolve(spec, writable=True, device=HOST, **options):
    return buffers.resolve(spec, NAME, writable=writable, device=device, **options)


def vector(spec, size=1, writable=True, device=HOST):
    return buffers.resolve_vector(spec, NAME, size, writable=writable, device=device)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("dtype", ["i1", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (3, 0, 2), (1, 1)])
def test_arrays_of_all_protocols(wrap, dtype, shape):
    array = np.zeros(shape, dtype)
    buffer = resolve(wrap(array))
    assert buffer.datatype is TABLE[array.dtype.name]
    assert (buffer.count, buffer.nbytes, buffer.shape) == (array.size, array.nbytes, shape)
    assert not buffer.readonly
    assert buffer.stream is None
    if array.size:
        assert buffer.address == array.ctypes.data


@pytest.mark.parametrize("wrap", [*WRAPPERS.values(), fake_cupy, FakeTensor])
def test_memory_order_does_not_matter_but_gaps_do(wrap):
    device = GPU if wrap in (fake_cupy, FakeTensor) else HOST
    wrap_there = (lambda array: wrap(array, ordinal=1)) if device is GPU else wrap
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda device: FakeStream(0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(arrays.sys.modules, "torch", torch)
        assert resolve(wrap_there(np.zeros((3, 4)).T), device=device).count == 12
        assert resolve(wrap_there(np.zeros((4, 3))[1:3]), device=device).count == 6
        for gaps in (np.zeros(8)[::2], np.zeros((4, 4))[:, :2], np.zeros((2, 3, 4)).transpose(1, 0, 2)):
            with pytest.raises(BufferError, match=r"Allreduce: recvbuf is not contiguous.*copy"):
                resolve(wrap_there(gaps), device=device)


class FakeStream:
    def __init__(self, handle):
        self.cuda_stream = self.ptr = handle


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


def test_unknown_elements_are_bytes():
    for dtype in ("V2", [("a", "f4"), ("b", "i4")], ml_dtypes.float8_e4m3fn):
        array = np.zeros(4, dtype)
        buffer = resolve(InterfaceArray(array))
        assert (buffer.datatype, buffer.count) == (TABLE["uint8"], array.nbytes)


def test_bfloat16_by_every_protocol(on_gpus, monkeypatch):
    bfloat16 = np.zeros(6, ml_dtypes.bfloat16)
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda device: FakeStream(77)))
    monkeypatch.setitem(arrays.sys.modules, "torch", torch)
    tensor = resolve(FakeTensor(bfloat16.view("u2"), "bfloat16", ordinal=1), device=GPU)
    assert (tensor.datatype, tensor.count, tensor.stream) == (TABLE["bfloat16"], 6, 77)
    interface = resolve(InterfaceArray(bfloat16, stream=5), device=GPU)
    assert (interface.datatype, interface.count, interface.stream) == (TABLE["bfloat16"], 6, 5)
    assert resolve(bfloat16).datatype is TABLE["bfloat16"]


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
        return buffers.resolve_dynamic(spec, NAME, 2, writable=writable, device=HOST)

    buffer, got, places = dynamic([A, (counts, InterfaceArray(displs))])
    assert (buffer.count, got.address, places.address) == (12, counts.ctypes.data, displs.ctypes.data)
    assert dynamic(A)[1:] == dynamic([A, TYPE])[1:] == (None, None)
    with pytest.raises(BufferError, match="counts is read-only"):
        dynamic([A, InterfaceArray(counts, data=(counts.ctypes.data, True))], writable=True)


def test_where_on_the_host_device():
    for array in (A, InterfaceArray(A), DlpackArray(A), FakeTensor(A, cuda=False), [A, 1], (A, TYPE)):
        assert buffers.where(array) == "device"
    for nothing in (None, MPI.IN_PLACE, MPI.BOTTOM, [None, 0], [MPI.BOTTOM, 1, TYPE], []):
        assert buffers.where(nothing) is None
    for other in (b"abc", bytearray(3), memoryview(b"abc"), 3, object(), [b"abc", TYPE]):
        assert buffers.where(other) == "host"


def test_where_on_gpus(on_gpus, monkeypatch):
    assert buffers.where(fake_cupy(A)) == buffers.where([fake_cupy(A), 1]) == "device"
    assert buffers.where(FakeTensor(A)) == "device"
    assert buffers.where(FakeTensor(A, cuda=False)) == "host"
    assert buffers.where(A) == buffers.where(DlpackArray(A)) == buffers.where(InterfaceArray(A)) == "host"
    assert buffers.where(DlpackArray(A, device=(2, 0))) == buffers.where(DlpackArray(A, device=(13, 0))) == "device"
    monkeypatch.setattr(arrays, "is_device_pointer", lambda address: address == A.ctypes.data)
    assert buffers.where(InterfaceArray(A)) == "device"
    assert buffers.where(InterfaceArray(np.zeros(3))) == "host"
    assert buffers.where(InterfaceArray(np.zeros(0), data=(None, False))) == "device"


def test_the_driver_says_what_is_device_memory(monkeypatch):
    def answer(status, memory_type):
        def attribute(result, which, address):
            assert (which, address.value) == (2, 0x1000)
            result._obj.value = memory_type
            return status

        return lambda: types.SimpleNamespace(cuPointerGetAttribute=attribute)

    for status, memory_type, expected in ((0, 2, True), (0, 1, False), (1, 2, False), (3, 0, False)):
        monkeypatch.setattr(pointers, "_driver", answer(status, memory_type))
        assert pointers.is_device_pointer(0x1000) is expected
    monkeypatch.setattr(pointers, "_driver", lambda: None)
    assert pointers.is_device_pointer(0x1000) is False


def test_cupy_arrays(on_gpus):
    buffer = resolve(fake_cupy(A, ordinal=1), device=GPU)
    assert (buffer.address, buffer.count, buffer.datatype) == (A.ctypes.data, 12, TABLE["float64"])
    with pytest.raises(ValueError, match="recvbuf is on GPU 0, the communicator on GPU 1"):
        resolve(fake_cupy(A), device=GPU)
    assert resolve(fake_cupy(np.zeros(0)), device=GPU).count == 0
    with pytest.raises(NotSupported, match="PYNCCLX_DEVICE"):
        resolve(fake_cupy(A), device=HOST)


def test_tensors_that_cannot_be_used(on_gpus):
    with pytest.raises(BufferError, match=r"recvbuf\.detach\(\)"):
        resolve(FakeTensor(A, ordinal=1, requires_grad=True), device=GPU)
    with pytest.raises(BufferError, match="resolve_conj"):
        resolve(FakeTensor(A, ordinal=1, conj=True), device=GPU)
    with pytest.raises(ValueError, match="GPU 0, the communicator on GPU 1"):
        resolve(FakeTensor(A), device=GPU)
    with pytest.raises(NotSupported, match="host memory"):
        resolve(FakeTensor(A, cuda=False), device=GPU)


def test_host_memory_among_device_arrays_is_refused(on_gpus):
    stranger = FakeDevice("gpu", owns=False)
    for array in (A, [A, TYPE], bytearray(8), [bytearray(8), TYPE], InterfaceArray(A), DlpackArray(A)):
        with pytest.raises(NotSupported, match="host memory"):
            resolve(array, device=stranger)


@pytest.mark.parametrize(("stream", "asked"), [(None, -1), (0, 1), (77, 77), (FakeStream(9), 9)])
def test_dlpack_producers_order_themselves_before_our_stream(on_gpus, stream, asked):
    array = DlpackArray(A, device=(2, 1))
    buffer = resolve(array, device=FakeDevice("gpu", 1, stream=stream))
    assert array.asked["stream"] == asked
    assert buffer.stream is None


def test_dlpack_memory_lives_as_long_as_the_buffer():
    buffer = resolve(DlpackArray(np.full(1000, 7.0)))
    again = np.full(1000, 8.0)
    view = (ctypes.c_double * 1000).from_address(buffer.address)
    assert set(view) == {7.0}
    assert again[0] == 8.0


def test_attributes_of_single_objects_are_not_taken_for_their_class():
    bare = types.SimpleNamespace()
    assert buffers.where(bare) == "host"
    dressed = types.SimpleNamespace(__cuda_array_interface__=InterfaceArray(A).__cuda_array_interface__)
    assert resolve(dressed).count == 12
    assert buffers.where(bare) == "host"


@pytest.mark.parametrize(
    ("element", "name"),
    [
        ((2, 32, 1), "float32"),
        ((5, 128, 1), "complex128"),
        ((2, 128, 2), "complex256"),
        ((6, 8, 1), "bool"),
        ((1, 8, 4), "8"),
    ],
)
def test_element_types_of_dlpack(element, name):
    """Code, bits, lanes: two lanes of floats are a complex number, other lanes no type of ours."""
    assert dlpack._name(*element) == name
