"""The options of Alltoallv's dynamic form."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from ..memory.parameters import PACKED, PLACED, SENDER, SLOTS
from ..numba_kernels.calls import NAME as NUMBA
from .arguments import check_algorithm

PLACEMENTS = {"packed": PACKED, "slots": SLOTS, "sender": SENDER, "placed": PLACED}
IN_SLOTS = ("slots", "sender")


class DynamicOptions(NamedTuple):
    """The keyword arguments of the dynamic form."""

    layout: str | None = None
    capacity: int | None = None
    total: Any = None
    status: Any = None
    overflow: str | None = None
    segments: Any = None
    algorithm: str | None = None

    @property
    def given(self) -> bool:
        """Whether an option is given that MPI's form does not have."""
        return any(option is not None for option in self[:-1])

    @property
    def drops(self) -> bool:
        """Whether rows that do not fit are dropped without an error."""
        return self.overflow == "drop" if self.overflow else self.status is not None

    @property
    def placement(self) -> str:
        """The placement of rows, a key of `PLACEMENTS`."""
        return self.layout or "packed"

    def check(self) -> None:
        """Raise ValueError if an option has an invalid value."""
        if self.placement not in PLACEMENTS:
            names = "'packed', 'slots', 'sender' or 'placed'"
            raise ValueError(f"Alltoallv: layout is {self.layout!r}; it can be {names}")
        check_algorithm("Alltoallv", self.algorithm, NUMBA)
        if self.overflow not in (None, "raise", "drop"):
            raise ValueError(f"Alltoallv: overflow is {self.overflow!r}; it can be 'raise' or 'drop'")

    def rows_of(self, room: int) -> int:
        """Return how many of the `room` rows of recvbuf, or of a slot, may be written."""
        if self.capacity is None:
            return room
        capacity = operator.index(self.capacity)
        if not 0 <= capacity <= room:
            where = "a slot of recvbuf" if self.layout in IN_SLOTS else "recvbuf"
            raise ValueError(f"Alltoallv: capacity is {capacity}, and {where} has {room} rows; give 0 to {room}")
        return capacity
