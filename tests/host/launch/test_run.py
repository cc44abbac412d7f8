"""How a call that came before is launched again."""

from types import SimpleNamespace

import pytest

from pyncclx.launch.run import SHORT_GRID, _launch_again
from pyncclx.team.launch_order import LaunchOrder
from pyncclx.team.plans import Plan, RememberedLaunch


class Device:
    """`done` has what was launched, and how."""

    def __init__(self):
        self.done = []

    def current_stream(self):
        return None

    def is_capturing(self, stream):
        return False

    def is_per_thread(self, stream):
        return False

    def launch(self, function, grid, threads, parameters, stream, early=False):
        self.done.append(("launch", function, grid, threads, parameters, early))

    def repeated(self, *arguments, early):
        launch = lambda stream: self.done.append(("repeat", *arguments, early))  # noqa: E731
        return SimpleNamespace(launch=launch)


@pytest.fixture
def team():
    device = Device()
    return SimpleNamespace(device=device, order=LaunchOrder(device), errors=SimpleNamespace(check=lambda: None))


@pytest.mark.parametrize(
    ("grid", "early", "is_prepared"),
    [(1, True, True), (SHORT_GRID, True, True), (SHORT_GRID + 1, True, False), (64, False, True)],
)
def test_short_kernels_are_prepared_when_they_come_again(team, grid, early, is_prepared):
    remembered = RememberedLaunch(Plan("Bcast", "kernel", grid, 32, early), b"arguments", (), None, None)
    for _ in range(3):
        _launch_again(SimpleNamespace(blocking="stream"), team, remembered)
    how = "repeat" if is_prepared else "launch"
    whole = ("kernel", grid, 32, b"arguments", early)
    assert team.device.done == [("launch", *whole), (how, *whole), (how, *whole)]


def test_what_is_launched_between_other_things_is_not_prepared(team):
    """Packing and unpacking around the kernel."""
    around = (lambda team, stream: team.device.done.append("before"), None)
    remembered = RememberedLaunch(Plan("Bcast", "kernel", 1, 32, True), b"arguments", (), around, None)
    for _ in range(3):
        _launch_again(SimpleNamespace(blocking="stream"), team, remembered)
    assert [each if each == "before" else each[0] for each in team.device.done] == ["before", "launch"] * 3
