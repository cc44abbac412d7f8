"""Protocols of what a communicator owns beside its lease, and closes with it."""

from __future__ import annotations

from typing import Protocol


class Dependent(Protocol):
    """Memory beside the lease; `close` removes it from `Team.dependents`."""

    nbytes: int

    def close(self) -> None: ...


class KernelTeam(Dependent, Protocol):
    """Memory for a program's own kernels; `close` removes it from `Team.device_teams`.

    Attributes
    ----------
    for_program : bool
        Whether the program launches the kernels, on any streams. Otherwise a window's signals use them.
    """

    for_program: bool

    def update_window(self, number: int) -> None: ...
