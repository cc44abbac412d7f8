"""How many channels a process wants."""

import pytest

from pyncclx import members
from pyncclx.devices.host import Device


def test_channels(monkeypatch):
    device = Device()
    monkeypatch.delenv(members.CHANNELS, raising=False)
    assert members.channels(device) == device.max_channels
    for text in ("1", str(device.most_channels)):
        monkeypatch.setenv(members.CHANNELS, text)
        assert members.channels(device) == int(text)


@pytest.mark.parametrize("text", ["0", "-1", "65", "many", "2.0"])
def test_a_wrong_number_of_channels(monkeypatch, text):
    monkeypatch.setenv(members.CHANNELS, text)
    with pytest.raises(ValueError, match=f"PYNCCLX_CHANNELS='{text}': .* from 1 to 64"):
        members.channels(Device())
