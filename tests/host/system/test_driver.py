"""What the driver says of an address, asked by ctypes."""

import ctypes
from types import SimpleNamespace

import pytest

from pyncclx.system import driver

HOST, DEVICE = 1, 2  # CU_MEMORYTYPE_…


def library(memory_type, is_managed, ordinal, status=0):
    """A driver that has one answer."""

    def cuPointerGetAttributes(count, attributes, places, address):
        assert list(attributes) == [2, 8, 9]  # memory type, is managed, device ordinal
        for place, answer in zip(places, (memory_type, is_managed, ordinal), strict=True):
            ctypes.c_uint.from_address(place).value = answer
        return status

    return SimpleNamespace(cuPointerGetAttributes=cuPointerGetAttributes)


@pytest.mark.parametrize(
    ("found", "gpu"),
    [
        (library(DEVICE, 0, 3), 3),
        (library(DEVICE, 1, 3), None),  # managed memory: the host can use it
        (library(HOST, 0, 0), None),
        (library(0, 0, 0), None),  # memory that the driver has not heard of
        (library(DEVICE, 0, 3, status=3), None),  # not initialised
        (None, None),
    ],
)
def test_gpu_of_memory(monkeypatch, found, gpu):
    monkeypatch.setattr(driver, "_library", lambda: found)
    assert driver.gpu_of_memory(1 << 40) == gpu
