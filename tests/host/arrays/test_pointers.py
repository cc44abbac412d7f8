"""Where the memory of host objects is: asked of the driver once for each object, and only if it may be a device's."""

import array as stdlib_array
import ctypes
import gc
import mmap
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from numpy.lib.stride_tricks import sliding_window_view

from pyncclx.arrays import places, pointers
from pyncclx.arrays.specs import span_of


@pytest.fixture
def asked(monkeypatch):
    """The addresses that the driver is asked for; those in the set are on GPU 0."""
    found = SimpleNamespace(addresses=[], on_gpu=set())

    def gpu_of_memory(address):
        found.addresses.append(address)
        return 0 if address in found.on_gpu else None

    monkeypatch.setattr(pointers, "gpu_of_memory", gpu_of_memory)
    monkeypatch.setattr(places, "host_arrays", lambda: False)
    pointers._known.clear()
    yield found
    pointers._known.clear()


def over(address, count=4):
    """An array over a pointer, as PyFR makes it."""
    described = {"version": 3, "typestr": "<f8", "data": (address, False), "shape": (count,)}
    return np.array(SimpleNamespace(__array_interface__=described), copy=False)


def test_once_for_an_array_and_its_views(asked):
    whole, on_gpu = over(4096), over(8192)
    asked.on_gpu |= {8192}
    for _ in range(3):
        assert places.where(whole) == places.where(whole[1:]) == places.where([whole[::-1], MPI.DOUBLE]) == "host"
        assert places.where(on_gpu) == places.where(on_gpu[1:]) == places.where(on_gpu.reshape(2, 2)) == "device"
    assert asked.addresses == [4096, 8192]


def test_anew_for_another_array_in_the_same_place(asked):
    """An address says nothing: it may have been freed, and be used for other memory now."""
    assert places.where(over(4096)) == "host"
    asked.on_gpu |= {4096}
    assert places.where(over(4096)) == "device"
    gc.collect()
    assert not pointers._known


def test_never_of_memory_that_is_pythons_own(asked):
    memory = bytearray(64)
    own = [np.zeros(8), np.frombuffer(memory), np.frombuffer(memory)[1:], np.asarray(memoryview(memory))]
    own += [memory, memoryview(memory), memoryview(np.zeros(4)), MPI.buffer(memory), b"x", stdlib_array.array("d", [1])]
    own += [np.zeros(4).view(np.recarray), np.float64(3), memoryview(b"xyz")[1:]]
    for each in own:
        assert places.where(each) == "host", each
    assert asked.addresses == []


def test_every_object_with_a_buffer_interface(asked):
    memory = mmap.mmap(-1, 4096)
    address = np.frombuffer(memory).ctypes.data
    objects = [
        MPI.buffer.fromaddress(address, 64),
        memoryview(MPI.buffer.fromaddress(address, 64)),
        memoryview(memory),
        memory,
        (ctypes.c_double * 8).from_address(address),
        ctypes.c_double.from_address(address),
        np.frombuffer(memory),
        np.ctypeslib.as_array((ctypes.c_double * 8).from_address(address)),
        over(address).view(np.recarray),
    ]
    assert [places.where(each) for each in objects] == ["host"] * len(objects)
    asked.on_gpu |= {address}
    pointers._known.clear()
    assert [places.where(each) for each in objects] == ["device"] * len(objects)
    assert [places.where([each, 3, MPI.DOUBLE]) for each in objects] == ["device"] * len(objects)


def test_no_address_has_no_place(asked):
    """Some libraries give it for an empty array: the other buffer of a call decides."""
    assert places.where(MPI.buffer.fromaddress(0, 0)) is None
    assert places.on_host(MPI.buffer.fromaddress(0, 0), np.zeros(3))


def test_counts_over_a_pointer(asked):
    assert not places.on_device(over(4096))
    assert not places.on_device(np.int64(3))
    asked.on_gpu |= {8192}
    assert places.on_device(over(8192))


def test_on_the_host_device_memory_by_address_is_on_the_device(monkeypatch):
    monkeypatch.setattr(places, "host_arrays", lambda: True)
    array, memory = np.zeros(4), (ctypes.c_double * 4)()
    assert places.where(MPI.buffer.fromaddress(array.ctypes.data, 32)) == "device"
    assert places.where(memoryview(array)) == places.where(np.frombuffer(bytearray(8))) == "device"
    assert places.where((ctypes.c_double * 4).from_address(array.ctypes.data)) == "device"
    for own in (bytearray(8), memoryview(bytearray(8)), memory, np.float64(3), b"xyz"):
        assert places.where(own) == "host", own
        assert not places.on_device(own)


def of_cupy(address, count, base=None):
    """What a CuPy array of float64 tells of its memory."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address), nbytes=8 * count, base=base)


def test_memory_around_views():
    """Calls may use what a view's base array has before and behind it; other arrays' memory is unknown or their own."""
    array, owned = np.zeros(10), bytearray(80)
    begin, whole = array.ctypes.data, of_cupy(4096, 10)
    cases = [
        (array[3:5], begin + 24, (24, 40)),
        (array.reshape(2, 5)[1, 1:][:2], begin + 48, (48, 16)),
        (np.frombuffer(owned)[2:], MPI.Get_address(owned) + 16, (16, 0)),
        (MPI.buffer(array[3:5]), begin + 24, (24, 40)),
        (array, begin, None),
        (over(begin), begin, (0, 0)),
        (MPI.buffer.fromaddress(begin, 16), begin, None),
        (sliding_window_view(array, 3)[2], begin + 16, (16, 40)),
        (of_cupy(4112, 3, whole), 4112, (16, 40)),
        (whole, 4096, None),
    ]
    of_ctypes = (ctypes.c_double * 2).from_buffer(owned, 16)
    assert pointers.memory_of(of_ctypes) == (MPI.Get_address(owned), MPI.Get_address(owned) + 80)
    device = SimpleNamespace(room=lambda address, nbytes: 0)
    for view, address, margins in cases:
        assert pointers.margins_of(view, address) == margins, view
        if margins is not None:
            before, behind = margins
            assert pointers.reaches(view, device, address, view.nbytes + behind), view
            assert not pointers.reaches(view, device, address, view.nbytes + behind + 1), view
            assert not pointers.precedes(view, device, address, before + 1), view


BACKWARDS = MPI.DOUBLE.Create_hvector(3, 1, -16).Create_resized(0, 8)
COLUMN = MPI.DOUBLE.Create_vector(4, 1, 10).Create_resized(0, 8)


@pytest.mark.parametrize(
    ("spec", "end"),
    [
        (["m"], 0),
        (["m", MPI.DOUBLE], 0),
        (["m", 3, MPI.DOUBLE], 3 * 24),
        (["m", (3, 2), MPI.DOUBLE], 2 * 8 + 3 * 24),
        (["m", 3, 2, "i4"], 2 * 4 + 3 * 12),
        (["m", 2, COLUMN], 31 * 8 + 5 * 8),
        (["m", [2, 1, 0], [0, 5, 900], COLUMN], 31 * 8 + 5 * 8),
        (["m", [1, 2, 3], MPI.DOUBLE], 6 * 8),
        (["m", ([1, 2, 3], 7), MPI.DOUBLE], 17 * 8),
        (["m", ([1, 1, 0], [8, 16, 999]), [MPI.DOUBLE, COLUMN, COLUMN]], 16 + 31 * 8),
        (["m", [1, 1, 0], [8, 16, 999], [MPI.DOUBLE, COLUMN, COLUMN]], 16 + 31 * 8),
        (["m", [MPI.DOUBLE, COLUMN, MPI.INT]], 31 * 8),
        (["m", 0, COLUMN], 0),
        (["m", [1, 2, 3]], 6),
        (["m", [1, 2]], 3),
        (["m", ([1, 2, 3], [4, 8, 0])], 10),
        (["m", ([1, 2, 3], 7)], 17),
        (["m", []], 0),
        (["m", ([], []), []], 0),
        (["m", [], [], []], 0),
    ],
)
def test_spans(spec, end):
    """Of three blocks."""
    assert span_of(spec, 3) == (0, end)


@pytest.mark.parametrize(
    ("spec", "span"),
    [
        (["m", 1, BACKWARDS], (-32, 24)),
        (["m", (1, 1), BACKWARDS], (-24, 32)),
        (["m", 0, BACKWARDS], (0, 0)),
        (["m", [1, 2, 0], [0, 5, -900], BACKWARDS], (-32, 56)),
        (["m", ([1, 1], [0, 64]), [MPI.DOUBLE, BACKWARDS]], (0, 72)),
        (["m", 1, MPI.DOUBLE.Create_resized(0, -8)], (-16, 8)),
    ],
)
def test_spans_before_the_beginning(spec, span):
    assert span_of(spec, 3) == span
