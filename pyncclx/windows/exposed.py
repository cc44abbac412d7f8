"""The memory of a window: exposed when the window is created, or attached later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from mpi4py import MPI

from ..arrays.buffers import resolve
from ..arrays.places import host_arrays, where
from ..arrays.vectors import integer
from ..errors import MPIError, NotSupported
from ..memory.mapped import Window
from ..staging.copies import PublicCopy
from ..system.process import BoundedCache
from ..team.base import Base
from ..team.state import state_of
from ..team.team import Team
from .reach import Reach, parse
from .signals import Signals


class Place(NamedTuple):
    """The memory that a rank exposes."""

    window: int  # number of its `comm.Alloc` window; negative for memory of 0 bytes that is in none
    offset: int  # offset in that window, in bytes
    nbytes: int
    disp_unit: int


class Exposed(Reach):
    """The memory that all ranks have exposed, as mapped in this process."""

    def __init__(self, comm: MPI.Intracomm, team: Team, places: list[Place]) -> None:
        self.team, self._used = team, {}
        self.copies = BoundedCache()
        self.signals = Signals(comm, team)
        self.places = places
        self.bases = [team.windows[place.window].bases[rank] + place.offset for rank, place in enumerate(places)]

    def close(self) -> None:
        """Release the signals."""
        self.signals.close()

    def holds(self, rank: int, target: object) -> bool:
        """Return True, because all targets are device memory."""
        return True

    def place(self, operation: str, rank: int, disp: int, bounds: tuple[int, int]) -> int:
        """Return the address, in this process, of the first byte that is accessed.

        Raises
        ------
        MPI.Exception
            If the displacement is negative (ERR_DISP), or if not all bytes are in that memory (ERR_RMA_RANGE).
        """
        place = self.places[rank]
        begin, end = disp * place.disp_unit + bounds[0], disp * place.disp_unit + bounds[1]
        if disp < 0 or begin < 0 or end > place.nbytes:
            text = f"{end - begin} bytes from byte {begin} on are not in the {place.nbytes} bytes of rank {rank}"
            raise MPIError(MPI.ERR_DISP if disp < 0 else MPI.ERR_RMA_RANGE, f"{operation}: {text}")
        return self.bases[rank] + begin

    def array(self, rank: int) -> Any:
        """Return a rank's memory as a device array of bytes."""
        self.check_mapped()
        place, me = self.places[rank], self.team.rank
        window = self.team.windows[place.window]
        # `peers` are in rank order, without this rank.
        owner = window.owner if rank == me else window.peers[rank - (rank > me)]
        whole = self.device.array(owner, (window.sizes[rank],), "u1")
        return whole[place.offset : place.offset + place.nbytes]


class Attached(Reach):
    """Arrays from `comm.Alloc` in a dynamic window; a target is its owner's address.

    All ranks have mapped these arrays, so attaching one needs no communication. MPI handles other attached memory.
    """

    def __init__(self, comm: Base) -> None:
        # The state outlives the communicator.
        self._state = state_of(comm)
        self._used = {}
        # Attached arrays by address, kept alive.
        self._arrays: dict[int, Any] = {}

    @property
    def team(self) -> Team:  # type: ignore[override]
        """The communicator's team; it exists once the communicator has arrays."""
        team = self._state.team
        if team is None:
            raise MPIError(MPI.ERR_WIN, "the window has no device memory yet: attach an array from comm.Alloc")
        return team

    @property
    def windows(self) -> list[Window]:
        """The windows that `comm.Alloc` has made so far."""
        team = self._state.team
        return [] if team is None else [window for window in team.windows if window.owner is not None]

    @property
    def in_use(self) -> bool:
        """Whether the communicator has windows."""
        return bool(self.windows)

    def close(self) -> None:
        """Release the arrays."""
        self._arrays.clear()

    def attach(self, memory: Any) -> bool:
        """Attach an array if it is from `comm.Alloc`; return whether it is."""
        address = self._address_of(memory)
        if address is not None:
            self._arrays[address] = memory
        return address is not None

    def detach(self, memory: Any) -> bool:
        """Detach an array if it is attached here; return whether it was."""
        address = self._address_of(memory)
        return address is not None and self._arrays.pop(address, None) is not None

    def holds(self, rank: int, target: object) -> bool:
        """Return whether the first byte of a target is in a rank's arrays."""
        return self._window_of(integer(rank), parse("Win", target).first) is not None

    def place(self, operation: str, rank: int, disp: int, bounds: tuple[int, int]) -> int:
        """Return the address, in this process, of the first byte that is accessed.

        Raises
        ------
        MPI.Exception
            Class ERR_RMA_RANGE, if not all bytes are in one array.
        """
        begin, end = disp + bounds[0], disp + bounds[1]
        window = self._window_of(rank, begin)
        if window is None or end > window.addresses[rank] + window.sizes[rank]:
            text = f"{end - begin} bytes from address {begin:#x} on are in no array from comm.Alloc of rank {rank}"
            raise MPIError(MPI.ERR_RMA_RANGE, f"{operation}: {text}")
        return window.bases[rank] + begin - window.addresses[rank]

    def _window_of(self, rank: int, address: int) -> Window | None:
        for window in self.windows:
            if 0 <= rank < len(window.sizes) and 0 <= address - window.addresses[rank] < window.sizes[rank]:
                return window
        return None

    def _address_of(self, memory: Any) -> int | None:
        """Return the address of an array if it is in one of this rank's windows."""
        windows = self.windows
        if not windows or where(memory) != "device":
            return None
        address = resolve([memory, MPI.BYTE], "Win: memory", writable=False, device=self.device).address
        return address if any(window.holds(address) for window in windows) else None


def place_of(comm: Any, memory: Any, disp_unit: int) -> Place | str | None:
    """Locate an array for `Win.Create` in the windows of the communicator.

    Returns
    -------
    Place, "elsewhere" or None
        "elsewhere" for a device array in no window, None for host memory, which MPI handles. Empty host memory, or a
        `memory` of None, has a place. So has empty device memory if the communicator has windows.

    Raises
    ------
    TypeError, MPI.Exception
        Raised by `checked_unit` for device memory.
    PeerTimeout, Aborted
        Raised by `ErrorRecord.check` for device memory.
    """
    if where(memory) != "device":
        return Place(-1, 0, 0, checked_unit("Win.Create", disp_unit)) if _is_empty(memory) else None
    # The team is not created here, because other ranks may have no device memory.
    team = state_of(comm).team if isinstance(comm, Base) else None
    if team is not None and team.windows:
        buffer = resolve(memory, "Win.Create: memory", writable=False, device=team.device)
        window = team.windows.at(buffer.address)
        # A window without an owner may be freed at any time.
        if window is not None and window.owner is None:
            window = None
        if window is not None or buffer.nbytes == 0:
            unit = checked_unit("Win.Create", disp_unit)
            # The caller raises an error from here on all ranks.
            team.errors.check()
            if window is None:
                return Place(-1, 0, 0, unit)
            return Place(window.number, buffer.address - window.memory.address, buffer.nbytes, unit)
    # On the host device, all arrays are in host memory.
    return None if host_arrays() else "elsewhere"


def _is_empty(memory: Any) -> bool:
    """Return whether an argument of host memory has no bytes."""
    try:
        return memory is None or memoryview(memory).nbytes == 0
    except TypeError:
        # mpi4py raises its own exception, or takes MPI.BOTTOM.
        return False


def on_device(found: Sequence[Place | str | None]) -> bool:
    """Return whether some rank exposes a device array.

    An empty array counts only if it is a part of an `Alloc` array.
    """
    return any(each is not None and (isinstance(each, str) or each.window >= 0) for each in found)


def all_from_alloc(found: Sequence[Place | str | None], node_count: int) -> list[Place]:
    """Return all ranks' places, if all memory is from `comm.Alloc` or empty.

    Raise NotSupported if some rank has no place, or if the ranks are on several nodes.
    """
    if node_count > 1:
        raise NotSupported(
            f"Win.Create: a window of device memory works inside one node, and the ranks are on {node_count}; Split by "
            "node, or make it of host arrays. With comm.staging = True, as in pyncclx.MPI, MPI exposes copies"
        )
    places = [each for each in found if isinstance(each, Place)]
    for rank, each in enumerate(found):
        if not isinstance(each, Place):
            raise NotSupported(
                f"Win.Create: the memory of rank {rank} is not from comm.Alloc of this communicator, that of other "
                "ranks is; call comm.Alloc on all ranks, or copy to host arrays. With comm.staging = True, MPI exposes "
                "copies"
            )
    # A rank without memory exposes no bytes of any window.
    number = max(each.window for each in places)
    return [each if each.window >= 0 else each._replace(window=number) for each in places]


def checked_size(size: Any) -> int:
    """Return a size as an integer; raise MPI.Exception (ERR_SIZE) if it is negative."""
    nbytes = integer(size)
    if nbytes < 0:
        raise MPIError(MPI.ERR_SIZE, f"Win.Allocate: size is {size} bytes; it cannot be negative")
    return nbytes


def checked_unit(operation: str, disp_unit: Any) -> int:
    """Return a unit as an integer; raise MPI.Exception (ERR_DISP) unless positive."""
    unit = integer(disp_unit)
    if unit < 1:
        raise MPIError(MPI.ERR_DISP, f"{operation}: disp_unit is {disp_unit} bytes; it must be positive")
    return unit


def public_copies(comm: MPI.Intracomm, memory: Any, disp_unit: Any) -> tuple[PublicCopy, ...]:
    """Return the public copy of a rank's device array.

    The result is empty for host memory, which MPI exposes directly.

    Raises
    ------
    TypeError, MPI.Exception, BufferError
        From `checked_unit`; BufferError if the array is read-only.
    """
    checked_unit("Win.Create", disp_unit)
    if where(memory) != "device" or host_arrays():
        return ()
    return (PublicCopy(memory, "Win.Create: memory", state_of(cast(Base, comm))),)
