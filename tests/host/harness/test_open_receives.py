"""A receive that a test leaves open is its failure."""

import pytest

from pyncclx.requests.open_receives import OPEN_RECEIVES
from support import open_receives


class Unmatched:
    """A receive whose message never comes."""

    has_arrived = is_polled = False

    def poll(self):
        return False


def test_a_receive_that_stays_open(on_the_host_device, monkeypatch):
    monkeypatch.setattr(open_receives, "PATIENCE", 0.01)
    open_receives.assert_none()
    receive = Unmatched()
    OPEN_RECEIVES.append(receive)
    try:
        with pytest.raises(pytest.fail.Exception, match="leaves receives open: \\['Unmatched'\\]"):
            open_receives.assert_none()
    finally:
        OPEN_RECEIVES.remove(receive)
    open_receives.assert_none()
