"""What the failure detector looks at."""

import os

import pytest

from mpi_bootstrap.presence import Presence
from pyncclx.recovery.detector import DETECTOR


@pytest.mark.parametrize("wrong", range(3))
def test_pages_that_cannot_all_be_mapped(wrong):
    """None is looked at, and all descriptors are closed."""
    detector, presence = DETECTOR.get(), Presence()
    before, peers = len(os.listdir("/proc/self/fd")), dict(detector.peers)
    fds = {bytes([number]): os.dup(presence.fd) for number in range(3)}
    os.close(fds[bytes([wrong])])
    fds[bytes([wrong])] = os.open(os.devnull, os.O_RDWR)  # which has no pages
    with pytest.raises(OSError, match="No such device"):
        detector.add_peers(fds)
    assert detector.peers == peers
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(presence.fd)
