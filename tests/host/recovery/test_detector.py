"""What the failure detector looks at."""

import os
import time

import pytest

from mpi_bootstrap.presence import Presence
from pyncclx.recovery import detector
from pyncclx.recovery.detector import DETECTOR


@pytest.mark.parametrize("wrong", range(3))
def test_pages_that_cannot_all_be_mapped(wrong):
    """None is looked at, and all descriptors are closed."""
    looking, presence = DETECTOR.get(), Presence()
    before, peers = len(os.listdir("/proc/self/fd")), dict(looking.peers)
    fds = {bytes([number]): os.dup(presence.fd) for number in range(3)}
    os.close(fds[bytes([wrong])])
    fds[bytes([wrong])] = os.open(os.devnull, os.O_RDWR)  # which has no pages
    with pytest.raises(OSError, match="No such device"):
        looking.add_peers(fds)
    assert looking.peers == peers
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(presence.fd)


@pytest.mark.parametrize(("cpu_s", "stood_still"), [(0.0, True), (1.5, False)])
def test_a_process_that_has_not_looked(monkeypatch, cpu_s, stood_still):
    """It stood still if it had no processor; else it was in a call that keeps the interpreter."""
    instance = DETECTOR.get()
    with instance._lock:  # its thread looks later
        monkeypatch.setattr(instance, "stood_still_ns", 0)
        now_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        monkeypatch.setattr(detector.time, "monotonic_ns", lambda: now_ns + 3 * 10**9)
        monkeypatch.setattr(detector.time, "process_time_ns", lambda: cpu_ns + int(cpu_s * 1e9))
        instance._last_ns, instance._last_cpu_ns = now_ns, cpu_ns
        instance.look()
        found = instance.stood_still_ns > now_ns
        monkeypatch.undo()
        instance._last_ns, instance.stood_still_s = time.monotonic_ns(), 0.0
    assert found == stood_still
