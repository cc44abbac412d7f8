"""A test that leaves a receive open changes what the tests after it do: it fails here, under its own name."""

import gc
import sys
import time

import pytest

# Seconds in which the open receives of requests that a test has dropped end by themselves.
PATIENCE = 5.0


def assert_none() -> None:
    """Fail if this process has open receives. Imports nothing: tests of other packages run without pyncclx."""
    module = sys.modules.get("pyncclx.requests.open_receives")
    end = time.monotonic() + PATIENCE
    while module is not None and module.OPEN_RECEIVES and time.monotonic() < end:
        gc.collect()  # requests in the tracebacks of expected errors
        sys.modules["pyncclx.messages.progress.polling"].PROGRESS.get().launch_arrived()
        time.sleep(0.001)
    left = [type(receive).__name__ for receive in (module.OPEN_RECEIVES if module is not None else ())]
    if left:
        pytest.fail(f"the test leaves receives open: {left}", pytrace=False)
