"""Memory of the host device: opened by name, unmapped with its last array, and no descriptor left over."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pyncclx.backends import host
from pyncclx.system import process


def descriptors() -> set[str]:
    """Return the open descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))


def test_exported_memory_is_opened_by_its_name() -> None:
    """A path in /proc alone may be that of another process's memory, in another PID namespace."""
    device = host.Device()
    mine, other = device.allocate_exported(4096), device.allocate_exported(4096)
    opened = device.open_exported(mine.handle, 4096)
    ctypes.memset(opened.address, 7, 1)
    assert ctypes.string_at(mine.address, 1) == b"\7"
    opened.close()
    assert len(mine.handle) <= 64
    before = descriptors()
    wrong = other.handle.split(b" ")[0] + b" " + mine.handle.split(b" ")[1]
    with pytest.raises(OSError, match="not the memory that was exported"):
        device.open_exported(wrong, 4096)
    assert descriptors() == before


def test_memory_is_unmapped_with_its_last_array() -> None:
    device, before = host.Device(), descriptors()
    memory = device.allocate_shared(4096)
    array = device.array(memory, (4096,), np.uint8)
    memory.close()
    array[:] = 7
    del array, memory
    assert descriptors() == before


def test_descriptors_of_memory_that_cannot_be_mapped() -> None:
    device, before = host.Device(), descriptors()
    exported = device.allocate_exported(4096)
    for attempt in (
        lambda: device.open_exported(exported.handle, 1 << 60),
        lambda: device.map_peer(os.dup(exported.memory.fd), 1 << 60),
        lambda: device.allocate_shared(1 << 60),
    ):
        with pytest.raises((OSError, ValueError)):
            attempt()
    exported.memory.close()
    assert descriptors() == before


def test_memory_of_freed_arrays_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays that NumPy caches, that malloc keeps, and that it maps; in all threads, and after a reset."""
    monkeypatch.setenv("PYNCCLX_SANITIZE", "1")
    for _ in range(2):
        host.Device()
        process.reset()
    with ThreadPoolExecutor(1) as pool:
        for nbytes in (1, 100, 5000, 1 << 22):
            for run in (_after_free, lambda nbytes: pool.submit(_after_free, nbytes).result()):
                assert run(nbytes) == b"\xdd" * nbytes


def _after_free(nbytes: int) -> bytes:
    """Return what the memory of an array holds once the array is gone."""
    array = np.full(nbytes, 7, np.uint8)
    address = array.ctypes.data
    del array
    return ctypes.string_at(address, nbytes)
