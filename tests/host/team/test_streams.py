"""On which stream an operation is enqueued, and what that stream waits for."""

import numpy as np
import pytest

from pyncclx.arrays.buffers import Buffer
from pyncclx.arrays.datatypes import TABLE
from pyncclx.team.streams import stream_for
from support import fake_streams
from support.fake_arrays import FakeTensor


class Device(fake_streams.Device):
    """With a current stream of CuPy's, and one of PyTorch's."""

    def __init__(self):
        super().__init__()
        self.current, self.of_torch = fake_streams.Stream(), fake_streams.Stream()
        self.current.ptr, self.of_torch.ptr = 5, 7

    def current_stream(self):
        return self.current

    def external_stream(self, pointer):
        assert pointer == self.of_torch.ptr
        return self.of_torch


@pytest.mark.parametrize("capture", [0, 1])
@pytest.mark.parametrize("of_current", [True, None])
def test_memory_of_the_current_stream(of_current, capture):
    """PyTorch's stream goes on behind what CuPy's has zeroed, where a call uses such memory; not within a graph."""
    device = Device()
    device.launch("zeros", 1, 1, b"", device.current)
    device.of_torch.capture = capture
    tokens = Buffer(1, 1, TABLE["float32"], (1,), False, device.of_torch.ptr, FakeTensor(np.zeros(1, "f4")))
    stream = stream_for(device, [tokens], of_current=of_current)
    device.launch("dispatch", 1, 1, b"", stream)
    assert stream is device.of_torch
    assert device.before["dispatch"] == (frozenset({"zeros"}) if of_current and not capture else frozenset())
