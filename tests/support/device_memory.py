"""Memory that only kernels and a device's copies may touch: on the host device, pages that are closed to all others.

Whoever else reads a pointer into it, MPI's C code for one, ends the process by SIGSEGV. Tests have a second mapping.
"""

import ctypes
import functools
import mmap
import os
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from pyncclx import backends
from pyncclx.arrays import places, pointers
from pyncclx.backends.host import kernels
from pyncclx.communicator import host_first
from pyncclx.objects import libraries
from pyncclx.staging import copies
from pyncclx.system import settings

NBYTES = 1 << 22
CLOTHES = ("buffer", "memoryview", "array", "view of an array", "ctypes", "subclass")
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NOTHING, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE


class Subclass(np.ndarray):
    """May override anything."""


class Place:
    """An array in that memory: `host` shows its contents."""

    def __init__(self, address, host):
        self.address, self.host = address, host

    def typed(self, clothes):
        """An object over it whose elements have a type; None in clothes that have none."""
        if clothes == "ctypes":
            return (np.ctypeslib.as_ctypes_type(self.host.dtype) * self.host.size).from_address(self.address)
        if "array" not in clothes and clothes != "subclass":
            return None
        holder = SimpleNamespace(__array_interface__={**self.host.__array_interface__, "data": (self.address, False)})
        array = np.array(holder, copy=False)  # as PyFR has it
        return {"array": array, "view of an array": array[:], "subclass": array.view(Subclass)}[clothes]

    def untyped(self, clothes):
        """An object over it whose elements are bytes."""
        buffer = MPI.buffer.fromaddress(self.address, self.host.nbytes)  # as heat has it
        return buffer if clothes == "buffer" else memoryview(buffer)

    def dressed(self, clothes):
        """An object over it."""
        typed = self.typed(clothes)
        return self.untyped(clothes) if typed is None else typed

    def spec(self, clothes, *between):
        """A buffer argument, with counts and displacements if there are some."""
        array = self.typed(clothes)
        if array is not None:
            return [array, *between] if between else array
        return [self.untyped(clothes), *between, MPI.Datatype.fromcode(self.host.dtype.char)]


class DeviceMemory:
    """The memory, of which each array has a piece of its own."""

    def __init__(self):
        fd = os.memfd_create("device")
        os.ftruncate(fd, NBYTES)
        self._shown = np.frombuffer(mmap.mmap(fd, NBYTES), np.uint8)
        self.address = _LIBC.mmap(None, NBYTES, _NOTHING, mmap.MAP_SHARED, fd, 0)
        os.close(fd)
        self._used = self._users = 0
        self._lock = threading.Lock()

    def holds(self, address):
        return 0 <= address - self.address < NBYTES

    def put(self, values):
        """A new array with these contents."""
        values = np.ascontiguousarray(values)
        begin, self._used = self._used, self._used + -(-values.nbytes // 64) * 64 + 64
        assert self._used <= NBYTES
        host = self._shown[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
        host[...] = values
        return Place(self.address + begin, host)

    def clear(self):
        """Forget the arrays."""
        self._used = 0

    # As `staging.pinned`

    def allocate(self, nbytes):
        return np.full(nbytes, 0xA5, np.uint8)

    def download(self, address, host, stream):
        with self.opened():
            ctypes.memmove(host.ctypes.data, address, host.nbytes)

    def upload(self, address, host, stream):
        with self.opened():
            ctypes.memmove(address, host.ctypes.data, host.nbytes)

    def upload_where(self, address, host, mask, stream):
        with self.opened():
            np.copyto(np.frombuffer((ctypes.c_char * host.nbytes).from_address(address), np.uint8), host, where=mask)

    @contextmanager
    def opened(self):
        """For the time in which a kernel runs."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change):
        with self._lock:
            self._users += change
            assert _LIBC.mprotect(self.address, NBYTES, _READ_WRITE if self._users else _NOTHING) == 0

    def opening(self, function):
        """A function that has the memory open while it runs."""

        @functools.wraps(function)
        def opens(*args, **kwargs):
            with self.opened():
                return function(*args, **kwargs)

        return opens


def installed(monkeypatch):
    """Arrays of the memory are device arrays, on which kernels run, and all others host arrays: make it a fixture."""
    device, memory = backends.select(), DeviceMemory()
    shared = []  # what peers map: heap and windows

    def is_device_pointer(address):
        return memory.holds(address) or any(0 <= address - each.address < each.nbytes for each in shared)

    def allocate_shared(nbytes, original=device.allocate_shared):
        shared.append(original(nbytes))
        return shared[-1]

    def copy(to, source, nbytes, stream):
        move = functools.partial(memory.opening(ctypes.memmove), to, source, nbytes)
        move() if stream is None else stream.enqueue(move)

    with monkeypatch.context() as patch:
        patch.setattr(settings, "DEVICE", SimpleNamespace(get=lambda: "gpu"))
        _forget_places()
        patch.setattr(pointers, "gpu_of_memory", lambda address: 0 if is_device_pointer(address) else None)
        patch.setattr(places, "is_device_pointer", is_device_pointer)
        patch.setattr(device, "is_device_pointer", is_device_pointer)
        patch.setattr(device, "allocate_shared", allocate_shared)
        patch.setattr(device, "room", lambda address, nbytes: min(nbytes, memory.address + NBYTES - address))
        patch.setattr(device, "copy", copy)
        patch.setattr(copies, "_mover", lambda: memory)
        for name in ("export", "peek", "fill_zero"):
            patch.setattr(device, name, memory.opening(getattr(device, name)))
        patch.setattr(kernels, "_run", memory.opening(kernels._run))
        yield memory
    _forget_places()


def _forget_places():
    places.host_arrays.cache_clear()
    host_first.looks_closely.cache_clear()
    pointers._known.clear()
    libraries._KNOWN.reset()
