"""A test that leaves a receive open changes what the tests after it do: it fails here, under its own name."""

import gc
import sys
import time

import pytest

# Seconds in which the open receives of requests that a test has dropped end by themselves.
PATIENCE = 5.0


def assert_none() -> None:
    """Fail if this process has open receives."""
    module = sys.modules.get("pyncclx.requests.open_receives")
    if module is None or not module.OPEN_RECEIVES:
        return
    from pyncclx.messages.progress.polling import PROGRESS  # noqa: PLC0415  the tests of mpi_bootstrap run without it

    end = time.monotonic() + PATIENCE
    while module.OPEN_RECEIVES and time.monotonic() < end:
        gc.collect()  # requests in the tracebacks of expected errors
        PROGRESS.get().launch_arrived()
        time.sleep(0.001)
    left = [type(receive).__name__ for receive in module.OPEN_RECEIVES]
    if left:
        pytest.fail(f"the test leaves receives open: {left}", pytrace=False)
