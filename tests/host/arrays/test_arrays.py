"""Every kind of array is accepted, wherever its memory is, and every bad one refused."""

import ctypes
import types

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays import dlpack, places, readers
from pyncclx.arrays.datatypes import TABLE
from pyncclx.errors import NotSupported
from pyncclx.system import driver
from support.fake_arrays import (
    GPU,
    HOST,
    WRAPPERS,
    DlpackArray,
    FakeDevice,
    FakeStream,
    FakeTensor,
    InterfaceArray,
    fake_cupy,
    resolve,
)

pytestmark = pytest.mark.usefixtures("on_the_host_device")

A, TYPE = np.zeros(12), MPI.DOUBLE


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
    torch = types.SimpleNamespace(_C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(readers.sys.modules, "torch", torch)
        assert resolve(wrap_there(np.zeros((3, 4)).T), device=device).count == 12
        assert resolve(wrap_there(np.zeros((4, 3))[1:3]), device=device).count == 6
        for gaps in (np.zeros(8)[::2], np.zeros((4, 4))[:, :2], np.zeros((2, 3, 4)).transpose(1, 0, 2)):
            with pytest.raises(BufferError, match=r"Allreduce: recvbuf is not contiguous.*copy"):
                resolve(wrap_there(gaps), device=device)


def test_bfloat16_by_every_protocol(on_gpus, monkeypatch):
    bfloat16 = np.zeros(6, ml_dtypes.bfloat16)
    torch = types.SimpleNamespace(_C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 77))
    monkeypatch.setitem(readers.sys.modules, "torch", torch)
    tensor = resolve(FakeTensor(bfloat16.view("u2"), "bfloat16", ordinal=1), device=GPU)
    assert (tensor.datatype, tensor.count, tensor.stream) == (TABLE["bfloat16"], 6, 77)
    interface = resolve(InterfaceArray(bfloat16, stream=5), device=GPU)
    assert (interface.datatype, interface.count, interface.stream) == (TABLE["bfloat16"], 6, 5)
    assert resolve(bfloat16).datatype is TABLE["bfloat16"]


def test_where_on_the_host_device():
    for array in (A, InterfaceArray(A), DlpackArray(A), FakeTensor(A, cuda=False), [A, 1], (A, TYPE)):
        assert places.where(array) == "device"
    for nothing in (None, MPI.IN_PLACE, MPI.BOTTOM, [None, 0], [MPI.BOTTOM, 1, TYPE], []):
        assert places.where(nothing) is None
    for other in (b"abc", bytearray(3), memoryview(b"abc"), 3, object(), [b"abc", TYPE]):
        assert places.where(other) == "host"


def test_where_on_gpus(on_gpus, monkeypatch):
    monkeypatch.setattr(places, "is_there", lambda: True)
    assert places.where(fake_cupy(A)) == places.where([fake_cupy(A), 1]) == "device"
    assert places.where(FakeTensor(A)) == "device"
    assert places.where(FakeTensor(A, cuda=False)) == "host"
    assert places.where(A) == places.where(DlpackArray(A)) == places.where(InterfaceArray(A)) == "host"
    assert places.where(DlpackArray(A, device=(2, 0))) == places.where(DlpackArray(A, device=(13, 0))) == "device"
    monkeypatch.setattr(places, "is_device_pointer", lambda address: address == A.ctypes.data)
    assert places.where(InterfaceArray(A)) == "device"
    assert places.where(InterfaceArray(np.zeros(3))) == "host"
    empty, claimed = InterfaceArray(np.zeros(0), data=(None, False)), DlpackArray(A, device=(2, 0))
    assert places.where(empty) == "device"
    monkeypatch.setattr(places, "is_there", lambda: False)
    assert places.where(empty) == places.where(claimed) == "host"


def test_the_driver_says_what_is_device_memory(monkeypatch):
    def answer(status, memory_type):
        def attribute(result, which, address):
            assert (which, address.value) == (2, 0x1000)
            result._obj.value = memory_type
            return status

        return lambda: types.SimpleNamespace(cuPointerGetAttribute=attribute)

    for status, memory_type, expected in ((0, 2, True), (0, 1, False), (1, 2, False), (3, 0, False)):
        monkeypatch.setattr(driver, "_library", answer(status, memory_type))
        assert driver.is_device_pointer(0x1000) is expected
    monkeypatch.setattr(driver, "_library", lambda: None)
    assert driver.is_device_pointer(0x1000) is False


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
    assert places.where(bare) == "host"
    dressed = types.SimpleNamespace(__cuda_array_interface__=InterfaceArray(A).__cuda_array_interface__)
    assert resolve(dressed).count == 12
    assert places.where(bare) == "host"


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
