"""What a communicator holds beside its lease, and closes with it."""

from __future__ import annotations

from typing import Protocol


class Dependent(Protocol):
    """Memory that the communicator holds beside the lease; `close` takes it out of `Team.dependents`."""

    nbytes: int

    def close(self) -> None: ...


class KernelTeam(Dependent, Protocol):
    """What a program's own kernels are given; `close` takes it out of `Team.device_teams`."""

    def update_window(self, number: int) -> None: ...
