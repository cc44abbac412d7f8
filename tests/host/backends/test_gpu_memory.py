"""Memory of the GPU that is read and written while streams are captured, on a driver that does nothing."""

from unittest.mock import MagicMock

import pytest
from cuda.bindings import driver

from pyncclx.memory import table
from support import fake_driver

RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@pytest.fixture
def fake(monkeypatch):
    with fake_driver.installed() as fake:
        monkeypatch.setattr(fake.module("driver").GpuProperties, "__init__", lambda self: None)
        yield fake


@pytest.fixture
def device(fake):
    device = fake.module("exports").GpuExports()
    device.ordinal = 0
    return device


def test_no_copy_is_part_of_a_capture(fake, device):
    """Each is on a stream of the device's own, where the driver allows it, and over on return."""
    copies, exchange = fake.driver["cuMemcpyAsync"], fake.driver["cuThreadExchangeStreamCaptureMode"]
    device.peek(0x1000, 1)  # the first may make streams
    there = len(fake.streams)
    for copy, side in ((lambda: device.poke(0x1000, b"words"), 0), (lambda: device.peek(0x1000, 5), 1)):
        exchange.reset_mock()
        fake.library.taken()
        copy()
        *addresses, nbytes, stream = copies.call_args.args
        assert (addresses[side], nbytes) == (0x1000, 5)
        assert fake.library.taken() == [("synchronize", int(stream))]
        assert [call.args for call in exchange.call_args_list] == [(RELAXED,), (exchange.return_value[1],)]
    assert len(fake.streams) == there


@pytest.mark.parametrize("captures", [False, True])
def test_constants_are_copied_on_a_stream_that_is_not_captured(fake, device, captures):
    """CuPy copies on its current stream, and refuses to while that is captured."""
    stream, copied_on = fake.Stream(), []
    stream.capture = int(captures)
    fake.cupy.asarray = lambda array: copied_on.append(fake.cuda.get_current_stream()) or MagicMock()
    with stream:
        device.upload(b"constants")
        assert fake.cuda.get_current_stream() is stream
    (used,) = copied_on
    assert (used is not stream) == captures
    assert not used.capture
    assert fake.library.taken()[-1] == ("synchronize", used.ptr)


@pytest.mark.parametrize("captures", [False, True])
def test_rows_of_tables_are_no_part_of_a_graph(fake, device, captures):
    """A graph would copy at each replay, from memory of the host that is long gone."""
    stream, copies = fake.Stream(), fake.driver["cuMemcpyAsync"]
    stream.capture = int(captures)
    with stream:
        table.write(device, 0x1000, b"a row")
    to, _, nbytes, used = copies.call_args.args
    assert (to, nbytes) == (0x1000, 5)
    assert (int(used) != stream.ptr) == captures
    assert fake.library.taken()[-1] == ("synchronize", int(used))


def test_a_copy_to_pageable_memory_never_waits_for_a_kernel(fake, device):
    """Other threads could load no kernels meanwhile, and the kernel may wait for what they do."""
    stream, waited, copies = fake.Stream(), [], fake.driver["cuMemcpyAsync"]
    copies.side_effect = lambda *arguments: waited.extend(fake.library.taken()) or (0,)
    fake.library.taken()
    device.copy_pageable(0x2000, 0x1000, 5, stream)
    assert waited == [("synchronize", stream.ptr)]
    assert copies.call_args.args[:3] == (0x2000, 0x1000, 5)


def test_shared_memory_is_given_up_with_its_owner(fake, device):
    """It is unmapped later: kernels may use it, or a stream may be captured."""
    given_up, memory = [], MagicMock()
    owner = device.owner(memory, given_up.append)
    assert owner.address is memory.address
    del owner
    assert given_up == [memory.close]
    memory.close.assert_not_called()


def test_allocations_that_lie_side_by_side(fake, device, monkeypatch):
    """A copy between host and device may be of one alone, also where the argument of a call reaches beyond."""
    allocations = {0x1000: 0x400, 0x1400: 0x200}
    memory = fake.module("memory")
    monkeypatch.setattr(memory, "checked", lambda result: result)
    monkeypatch.setattr(memory, "is_device_pointer", lambda address: 0x1000 <= address < 0x1600)
    monkeypatch.setattr(
        memory.driver,
        "cuMemGetAddressRange",
        lambda address: next(each for each in allocations.items() if each[0] <= address < sum(each)),
    )
    assert device.pieces(0x1100, 0x100) == [0x100]
    assert device.pieces(0x1100, 0x400) == [0x300, 0x100]
    assert device.pieces(0x1100, 0x4000) == [0x300, 0x200]
    assert device.pieces(0x1600, 0x10) == []
    assert device.room(0x1100, 0x4000) == 0x500
