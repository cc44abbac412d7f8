"""Before a collective begins to wait, messages have what they would load and allocate, where that would wait for it."""

from types import SimpleNamespace

import pytest

from pyncclx.messages import base


class Communicator(base.MessageBase):
    """A communicator that counts its endpoints."""

    size = 2

    def __init__(self):
        self.own = base._Attachment()
        self.made = 0

    @property
    def _messages(self):
        return self.own

    def _new_endpoint(self):
        self.made += 1
        return self.made


def device(*, loads_beside_kernels=False, capturing=False):
    return SimpleNamespace(
        loads_beside_kernels=loads_beside_kernels,
        current_stream=lambda: "stream",
        is_capturing=lambda stream: capturing,
    )


@pytest.mark.parametrize(
    ("settings", "size", "expected"),
    [
        ({}, 2, 1),
        ({}, 1, 0),  # no other rank to wait for
        ({"loads_beside_kernels": True}, 2, 0),
        ({"capturing": True}, 2, 0),
    ],
)
def test_when_an_endpoint_is_made(monkeypatch, settings, size, expected):
    monkeypatch.setattr(base.backends, "select", lambda: device(**settings))
    comm = Communicator()
    comm.size = size
    comm.prepare_messages()
    comm.prepare_messages()
    assert comm.made == expected
    assert comm.own.is_idle()  # it may end when it is dropped
    assert comm.endpoint == 1
    assert not comm.own.is_idle()
