"""The memory behind a window: what all ranks gave when they made it, or what each has attached to it since."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI

from ..arrays.buffers import resolve, where
from ..arrays.readers import host_arrays
from ..arrays.vectors import integer
from ..errors import MPIError
from ..memory.mapped import Window
from ..team.base import Base
from ..team.state import state_of
from ..team.team import Team
from .rma import Reach, parts
from .signals import Signals


class Place(NamedTuple):
    """What a rank exposes."""

    window: int  # its number; of `comm.Alloc`
    offset: int  # in that window, in bytes
    nbytes: int
    disp_unit: int


class Exposed(Reach):
    """The memory that all ranks of a communicator have exposed, as mapped in this process."""

    def __init__(self, comm: MPI.Intracomm, team: Team, places: list[Place]) -> None:
        self.team = team
        self.signals = Signals(comm, team)
        self.places = places
        self.bases = [team.windows[place.window].bases[rank] + place.offset for rank, place in enumerate(places)]

    def close(self) -> None:
        """Give back what was allocated for it."""
        self.signals.close()

    def holds(self, rank: int, spec: Any) -> bool:
        """It holds all that there is."""
        return True

    def place(self, operation: str, rank: int, disp: int, nbytes: int) -> int:
        """The address of bytes that are `disp` units behind the beginning of a rank's memory.

        Raises
        ------
        MPI.Exception
            Of class ERR_RMA_RANGE: they are not all in it.
        """
        place = self.places[rank]
        begin = disp * place.disp_unit
        if disp < 0 or nbytes < 0 or begin + nbytes > place.nbytes:
            text = f"{nbytes} bytes from byte {begin} on are not in the {place.nbytes} bytes of rank {rank}"
            raise MPIError(MPI.ERR_RMA_RANGE, f"{operation}: {text}")
        return self.bases[rank] + begin

    def array(self, rank: int) -> Any:
        """A rank's memory as a device array of bytes."""
        place, me = self.places[rank], self.team.rank
        window = self.team.windows[place.window]
        if rank == me:
            whole = self.device.array(window.owner, (window.sizes[me],), "u1")
        else:
            peer = window.peers[rank - (rank > me)]  # in the order of the ranks
            whole = self.device.peer_array(peer, (window.sizes[rank],), "u1")
        return whole[place.offset : place.offset + place.nbytes]


class Attached(Reach):
    """The memory of a dynamic window: arrays of `comm.Alloc`, named by their ranks' own addresses.

    All ranks have mapped them, so that attaching one tells nobody anything. What else is attached is MPI's.
    """

    def __init__(self, comm: Base) -> None:
        self._state = state_of(comm)  # which outlasts it
        self._arrays: dict[int, Any] = {}  # by address; they live as long as they are attached

    @property
    def team(self) -> Team:  # type: ignore[override]
        """Of the communicator, once it has arrays."""
        team = self._state.team
        if team is None:
            raise MPIError(MPI.ERR_WIN, "the window has no device memory yet: attach an array from comm.Alloc")
        return team

    @property
    def windows(self) -> list[Window]:
        """What `comm.Alloc` has given by now."""
        team = self._state.team
        return [] if team is None else [window for window in team.windows if window.owner is not None]

    @property
    def in_use(self) -> bool:
        """Whether there is any."""
        return bool(self.windows)

    def close(self) -> None:
        """Let go of the arrays."""
        self._arrays.clear()

    def attach(self, memory: Any) -> bool:
        """Attach an array, if it is from `comm.Alloc`."""
        address = _address_in(self.windows, memory, self)
        if address is not None:
            self._arrays[address] = memory
        return address is not None

    def detach(self, memory: Any) -> bool:
        """Forget an array, if it has been attached here."""
        address = _address_in(self.windows, memory, self)
        return address is not None and self._arrays.pop(address, None) is not None

    def holds(self, rank: int, spec: Any) -> bool:
        """Whether a displacement is an address in a rank's arrays."""
        return self._window_of(integer(rank), parts("Win", spec)[0]) is not None

    def place(self, operation: str, rank: int, disp: int, nbytes: int) -> int:
        """The address here of bytes at `disp`, their address there.

        Raises
        ------
        MPI.Exception
            Of class ERR_RMA_RANGE: they are not all in one array.
        """
        window = self._window_of(rank, disp)
        if window is None or nbytes < 0 or disp + nbytes > window.addresses[rank] + window.sizes[rank]:
            text = f"{nbytes} bytes from address {disp:#x} on are in no array from comm.Alloc of rank {rank}"
            raise MPIError(MPI.ERR_RMA_RANGE, f"{operation}: {text}")
        return window.bases[rank] + disp - window.addresses[rank]

    def _window_of(self, rank: int, address: int) -> Window | None:
        for window in self.windows:
            if 0 <= rank < len(window.sizes) and 0 <= address - window.addresses[rank] < window.sizes[rank]:
                return window
        return None


def _address_in(windows: list[Window], memory: Any, reach: Reach) -> int | None:
    """The address of an array, if it is in one of this rank's windows."""
    if not windows or where(memory) != "device":
        return None
    address = resolve([memory, MPI.BYTE], "Win: memory", writable=False, device=reach.device).address
    return address if any(window.holds(address) for window in windows) else None


def place_of(comm: Any, memory: Any, disp_unit: int) -> Place | str | None:
    """Where a rank's device array lies; a word if it is in no window; None for host memory."""
    if where(memory) != "device":
        return None
    team = state_of(comm).team if isinstance(comm, Base) else None  # not made here: other ranks may have no memory
    if team is not None and team.windows:
        buffer = resolve(memory, "Win.Create: memory", writable=False, device=team.device)
        window = team.windows.at(buffer.address)
        if window is not None and window.owner is not None:  # not one that may be freed
            return Place(window.number, buffer.address - window.memory.address, buffer.nbytes, disp_unit)
    return None if host_arrays() else "elsewhere"  # all of the host device's arrays are in host memory
