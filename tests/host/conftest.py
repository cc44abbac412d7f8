"""Fixtures of the tests that run in one process."""

import pytest

from pyncclx.arrays import places


@pytest.fixture
def on_the_host_device(monkeypatch):
    """NumPy arrays count as device arrays."""
    monkeypatch.setenv("PYNCCLX_DEVICE", "host")
    places.host_arrays.cache_clear()
    yield
    places.host_arrays.cache_clear()


@pytest.fixture
def on_gpus(on_the_host_device, monkeypatch):
    """They are in host memory, as where there are GPUs."""
    monkeypatch.delenv("PYNCCLX_DEVICE")
    places.host_arrays.cache_clear()
