"""Memory of the GPU that is read and written while streams are captured, on a driver that does nothing."""

from cuda.bindings import driver

from support import fake_driver

RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def test_no_copy_is_part_of_a_capture(monkeypatch):
    """Each is on a stream of the device's own, where the driver allows it, and over on return."""
    with fake_driver.installed() as fake:
        monkeypatch.setattr(fake.module("properties").GpuProperties, "__init__", lambda self: None)
        device, copies = fake.module("exports").GpuExports(), fake.driver["cuMemcpyAsync"]
        exchange = fake.driver["cuThreadExchangeStreamCaptureMode"]
        device.peek(0x1000, 1)  # which makes the stream
        for copy, side in ((lambda: device.poke(0x1000, b"words"), 0), (lambda: device.peek(0x1000, 5), 1)):
            exchange.reset_mock()
            fake.library.taken()
            copy()
            *addresses, nbytes, stream = copies.call_args.args
            assert (addresses[side], nbytes) == (0x1000, 5)
            assert fake.library.taken() == [("synchronize", int(stream))]
            assert [call.args for call in exchange.call_args_list] == [(RELAXED,), (exchange.return_value[1],)]
        assert len(fake.streams) == 1
