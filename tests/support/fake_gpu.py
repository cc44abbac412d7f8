"""A stand-in for a GPU: the CPU cannot read the addresses of its arrays, only the copies of `FakeGpu` can."""

import weakref

import numpy as np
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.arrays import places
from pyncclx.communicator import host_first
from pyncclx.messages.base import MessageBase
from pyncclx.staging import copies
from pyncclx.team.base import Base

NOWHERE = 1 << 60  # from here on there is no memory

memory: "weakref.WeakValueDictionary[int, np.ndarray]" = weakref.WeakValueDictionary()


class Bytes(np.ndarray):
    """Bytes that can be found by weak reference."""


class Array:
    """A device array: `host` has its contents."""

    def __init__(self, values, readonly=False):
        values = np.array(values)
        self.bytes = np.frombuffer(bytearray(values.tobytes()), np.uint8).view(Bytes)
        address = NOWHERE + self.bytes.ctypes.data
        memory[address] = self.bytes
        self.host = self.bytes.view(np.ndarray).view(values.dtype).reshape(values.shape)
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (address, readonly),
        }


class Rest:
    """A device array of the elements of another one, from some element on."""

    def __init__(self, array, first):
        begin, self._array = first * array.host.itemsize, array
        address, readonly = array.__cuda_array_interface__["data"]
        part = {"shape": array.host[first:].shape, "data": (address + begin, readonly)}
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | part


class FakeGpu:
    """A GPU, as far as copies need one."""

    loads_beside_kernels = True  # it has none

    name, ordinal = "gpu", 0

    def __init__(self):
        self.uploaded = 0
        self.captured = None  # the current stream, while it is being captured

    def current_stream(self):
        return self.captured

    def private_stream(self):
        return None

    def is_capturing(self, stream):
        return stream is not None

    def current_and_private(self):
        return self.captured, None

    def order_eager(self, first, then):
        """Nothing runs on it."""

    def synchronize(self, stream=None):
        """Nothing runs on it."""

    def is_device_pointer(self, address):
        return address >= NOWHERE

    def room(self, address, nbytes):
        is_there = any(key <= address < key + part.nbytes for key, part in memory.items())
        return self._part(address, nbytes).nbytes if is_there else 0

    def pieces(self, address, nbytes):
        """As if an allocation ended behind the first byte."""
        return [1, nbytes - 1] if nbytes > 1 else [nbytes]

    def allocate(self, nbytes):
        return np.full(nbytes, 0xA5, np.uint8)

    def _part(self, address, nbytes):
        base = max(key for key in list(memory) if key <= address)
        return memory[base][address - base :][:nbytes]

    def download(self, address, host, stream):
        host[:] = self._part(address, host.nbytes)

    def upload(self, address, host, stream):
        assert not self.is_capturing(stream), "a copy that the host waits for cannot be captured"
        self.uploaded += host.nbytes
        self._part(address, host.nbytes)[:] = host

    def upload_where(self, address, host, mask, stream):
        assert not self.is_capturing(stream), "a copy that the host waits for cannot be captured"
        self.uploaded += int(mask.sum())
        np.copyto(self._part(address, host.nbytes), host, where=mask)


def ramp(comm, count, dtype="f8", rank=None):
    """What a rank contributes: its own numbers."""
    return (np.arange(count) + 100 * (comm.rank if rank is None else rank)).astype(dtype)


def check(array, expected):
    np.testing.assert_array_equal(array.host, expected)


def installed(monkeypatch):
    """Arrays of the class above are on a GPU, and no kernel runs there: make an automatic fixture of it."""
    fake = FakeGpu()
    monkeypatch.setattr(places, "host_arrays", lambda: False)
    monkeypatch.setattr(host_first, "looks_closely", lambda: False)  # which is asked once in a process
    monkeypatch.setattr(places, "is_device_pointer", fake.is_device_pointer)
    monkeypatch.setattr(backends, "select", lambda: fake)
    monkeypatch.setattr(copies, "_mover", lambda: fake)

    def refuse(self, state=None):
        raise pyncclx.NotSupported("no kernels here")

    monkeypatch.setattr(Base, "_make_team", refuse)
    monkeypatch.setattr(MessageBase, "endpoint", property(refuse))
    return fake


def allowed():
    """A communicator that may stage: make a fixture of it."""
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        comm.staging = True
        yield comm
