"""The host device with the GPU's own code for streams and events, on a driver that does nothing.

Kernels run at once, whatever their stream. The current stream is the legacy default stream.
"""

import gc
from contextlib import contextmanager
from unittest.mock import patch

from pyncclx import backends
from pyncclx.messages import plan
from pyncclx.messages.context import CONTEXT
from pyncclx.messages.persistent import base as persistent
from support import fake_driver

_OF_STREAMS = (
    *("current_stream", "can_be_captured", "private_stream", "current_and_private", "external_stream", "new_stream"),
    *("synchronize", "order", "order_eager", "event", "can_leave", "is_capturing", "is_per_thread"),
)


@contextmanager
def installed():
    """Let this process's device have them, and yield the driver. Its communicators must be made inside."""
    device = backends.select()
    kind = type(device)

    def launch(function, grid, block, parameters, stream, early=False):
        fake.library.calls.append(("cuLaunchKernelEx", stream.ptr))
        kind.launch(device, function, grid, block, parameters, None, early)

    def copy(to, source, nbytes, stream):
        kind.copy(device, to, source, nbytes, None)

    with fake_driver.installed() as fake:
        with patch.object(fake.module("driver").GpuProperties, "__init__", lambda _: None):
            streams = fake.module("streams").GpuStreams()
        legacy = fake.Stream()
        legacy.ptr = streams.ordinal = 0
        methods = {name: getattr(streams, name) for name in _OF_STREAMS}
        methods |= {"launch": launch, "copy": copy, "launches_at_once": True}
        context = CONTEXT.get()
        of_messages = patch.multiple(context, side_stream=streams.new_stream(), spare_events=[])
        launched = patch.object(context.receives, "_holds_all", False)
        # Copies from pageable memory have read it when they return.
        pageable = patch.object(context.scratch, "is_read_later", False)
        # CuPy's arrays may be in the making; NumPy's, which stand for them, are not.
        in_the_making = [patch.object(module, "is_of_current", bool) for module in (plan, persistent)]
        _reclaim(context)
        with (
            legacy,
            patch.multiple(device, **methods),
            of_messages,
            launched,
            pageable,
            in_the_making[0],
            in_the_making[1],
        ):
            yield fake.library
            _reclaim(context)


def _reclaim(context):
    """Let endpoints that have gone ask for the ends of their streams while these are the device's."""
    gc.collect()
    context.bounce.headers.reclaim()
