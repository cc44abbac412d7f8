"""The number of channels that a process asks for, and ranks that share a GPU."""

import dataclasses
import warnings

import pytest

from pyncclx.backends.host import Device
from pyncclx.system import settings
from pyncclx.team import members


def test_channels(monkeypatch):
    device = Device()
    monkeypatch.delenv(settings.CHANNELS.name, raising=False)
    assert members.channels(device) == device.max_channels
    for text in ("1", str(device.multiprocessors)):
        monkeypatch.setenv(settings.CHANNELS.name, text)
        assert members.channels(device) == int(text)


@pytest.mark.parametrize("text", ["0", "-1", "65", "many", "2.0"])
def test_a_wrong_number_of_channels(monkeypatch, text):
    monkeypatch.setenv(settings.CHANNELS.name, text)
    with pytest.raises(ValueError, match=f"PYNCCLX_CHANNELS is '?{text}'?; .* from 1 "):
        members.channels(Device())


def member(device, runs_concurrently, assigned_processes=1, nvlinked=None):
    """A rank on a GPU."""
    return members.Member(
        node=b"node",
        hostname="node",
        device=device,
        runs_concurrently=runs_concurrently,
        assigned_processes=assigned_processes,
        architecture="sm_90",
        max_channels=64,
        multiprocessors=132,
        threads=512,
        nvlinked=None if nvlinked is None else frozenset(nvlinked),
        uid=b"",
        ipc_handle=b"",
        heap_nbytes=0,
        lease_offset=0,
        offer_nbytes=0,
        team_id=b"",
        timeout_s=1.0,
        limits=(),
        heaps=frozenset(),
        presences=frozenset(),
    )


def test_how_many_ranks_share_a_gpu():
    assert members.sharing([member(device, True) for device in "abcd"]) == 1
    assert members.sharing([member(device, True) for device in "abcbb"]) == 3
    assert members.sharing([member(device, False) for device in "abcbb"]) == 1  # one at a time
    assert members.sharing([member("a", True, 4), member("b", True, 3)]) == 4  # with ranks of other communicators
    assert members.sharing([member("a", False, 4), member("b", False, 3)]) == 1


def test_lines_need_links_between_gpus_and_can_be_switched_off():
    ranks = [member(device, True, nvlinked="abc") for device in "abc"]
    assert members.has_lines(ranks)
    assert not members.has_lines([*ranks, ranks[0]])  # two on one GPU
    assert not members.has_lines([*ranks[1:], dataclasses.replace(ranks[0], lines=False)])
    assert not members.has_lines([*ranks[1:], member("d", True, nvlinked="d")])


@pytest.mark.parametrize(
    ("devices", "nvlinked", "expected"),
    [
        ("abc", ["abc"] * 3, True),
        ("ab", ["ab", "ab"], True),  # and GPUs of others, to which nothing leads
        ("abc", ["abc", "abc", "bc"], False),
        ("ab", ["a", "b"], False),  # each sees its own
        ("aa", ["a", "a"], True),
        ("a", ["a"], True),
        ("ab", [None, None], True),  # the host device
    ],
)
def test_whether_links_lead_to_all(devices, nvlinked, expected):
    ranks = [member(device, True, nvlinked=seen) for device, seen in zip(devices, nvlinked, strict=True)]
    assert members.nvlinked(ranks) is expected


def test_who_shares_a_gpu_time_sliced_is_warned():
    with pytest.warns(RuntimeWarning, match=r"share a GPU \(b\) .*nvidia-cuda-mps-control"):
        members.warn([member(device, False) for device in "abb"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        members.warn([member(device, True) for device in "abb"])
        members.warn([member(device, False) for device in "abc"])


def test_unknown_settings_are_warned_of(monkeypatch):
    monkeypatch.setenv("PYNCCLX_CHANELS", "8")
    with pytest.warns(RuntimeWarning, match="PYNCCLX_CHANELS is no setting.* did you mean PYNCCLX_CHANNELS"):
        members.warn([member("a", True)])
