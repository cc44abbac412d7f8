"""The memory behind a dynamic window: the device arrays that its ranks have attached."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..arrays.buffers import resolve
from ..arrays.places import where
from ..arrays.vectors import integer
from ..errors import MPIError
from ..memory.mapped import Window
from ..team.base import Base
from ..team.state import state_of
from ..team.team import Team
from .reach import Reach, parse


class Attached(Reach):
    """The arrays of `comm.Alloc` in a dynamic window, named by addresses as their ranks have them.

    All ranks have mapped them, so that attaching one needs no communication. Other memory that is attached is MPI's.
    """

    def __init__(self, comm: Base) -> None:
        self._state = state_of(comm)  # which outlasts it
        self._arrays: dict[int, Any] = {}  # by address; they live as long as they are attached

    @property
    def team(self) -> Team:  # type: ignore[override]
        """The communicator's, once it has arrays."""
        team = self._state.team
        if team is None:
            raise MPIError(MPI.ERR_WIN, "the window has no device memory yet: attach an array from comm.Alloc")
        return team

    @property
    def windows(self) -> list[Window]:
        """The windows that `comm.Alloc` has made by now."""
        team = self._state.team
        return [] if team is None else [window for window in team.windows if window.owner is not None]

    @property
    def in_use(self) -> bool:
        """Whether there is any memory."""
        return bool(self.windows)

    def close(self) -> None:
        """Let go of the arrays."""
        self._arrays.clear()

    def attach(self, memory: Any) -> bool:
        """Attach an array, if it is from `comm.Alloc`; returns whether it is."""
        address = self._address_of(memory)
        if address is not None:
            self._arrays[address] = memory
        return address is not None

    def detach(self, memory: Any) -> bool:
        """Forget an array, if it has been attached here; returns whether it has."""
        address = self._address_of(memory)
        return address is not None and self._arrays.pop(address, None) is not None

    def holds(self, rank: int, target: object) -> bool:
        """Whether a displacement is an address in a rank's arrays."""
        return self._window_of(integer(rank), parse("Win", target).disp) is not None

    def place(self, operation: str, rank: int, disp: int, nbytes: int) -> int:
        """The address here of bytes at `disp`, their address there.

        Raises
        ------
        MPI.Exception
            Of class ERR_RMA_RANGE: they are not all in one array.
        """
        window = self._window_of(rank, disp)
        if window is None or disp + nbytes > window.addresses[rank] + window.sizes[rank]:
            text = f"{nbytes} bytes from address {disp:#x} on are in no array from comm.Alloc of rank {rank}"
            raise MPIError(MPI.ERR_RMA_RANGE, f"{operation}: {text}")
        return window.bases[rank] + disp - window.addresses[rank]

    def _window_of(self, rank: int, address: int) -> Window | None:
        for window in self.windows:
            if 0 <= rank < len(window.sizes) and 0 <= address - window.addresses[rank] < window.sizes[rank]:
                return window
        return None

    def _address_of(self, memory: Any) -> int | None:
        """The address of an array, if it is in one of this rank's windows."""
        windows = self.windows
        if not windows or where(memory) != "device":
            return None
        address = resolve([memory, MPI.BYTE], "Win: memory", writable=False, device=self.device).address
        return address if any(window.holds(address) for window in windows) else None
