"""What a communicator holds beside its lease, and closes with it."""

from __future__ import annotations

from typing import Protocol


class Dependent(Protocol):
    """Memory that the communicator holds beside the lease; `close` takes it out of `Team.dependents`."""

    nbytes: int

    def close(self) -> None: ...


class KernelTeam(Dependent, Protocol):
    """What a program's own kernels are given; `close` takes it out of `Team.device_teams`.

    Attributes
    ----------
    for_program : bool
        Whether the program launches the kernels, on streams that only it knows; else they are of a window's signals.
    """

    for_program: bool

    def update_window(self, number: int) -> None: ...
