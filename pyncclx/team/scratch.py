"""Device memory for one operation at a time: copies, lists of segments, results."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ..backends import Device, Upload
from ..errors import NotSupported
from .streams import ANY_CALLER, Caller, current_stream

ALIGNMENT = 256


class Scratch:
    """A communicator's scratch memory on this rank; it grows, and lives with the Team."""

    def __init__(self, device: Device, caller: Callable[[], Caller] = lambda: ANY_CALLER) -> None:
        self._device, self._caller = device, caller
        # Graphs may use earlier parts; only the last one is handed out.
        self._parts: list[tuple[int, Upload]] = []

    def address(self, nbytes: int) -> int:
        """Return the address of `nbytes` or more; allocate if the last part is shorter.

        Raises
        ------
        NotSupported
            The current stream is being captured, where memory cannot be allocated.
        """
        if not self._parts or self._parts[-1][0] < nbytes:
            enough = 1 << (nbytes - 1).bit_length()
            stream = current_stream(self._device, (), self._caller())  # its work has used the memory last
            if self._device.is_capturing(stream):
                raise NotSupported(f"{nbytes} bytes of scratch memory in a captured graph: call it once before")
            self._parts.append((enough, self._device.allocate_temporary(enough, stream)))
        return self._parts[-1][1].address

    def addresses(self, *lengths: int) -> list[int]:
        """Return addresses for parts of these lengths; raise as `address`.

        Distances are multiples of `ALIGNMENT`.
        """
        ends = list(itertools.accumulate(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in lengths))
        if not ends or ends[-1] == 0:
            return [0] * len(lengths)
        base = self.address(ends[-1])
        return [base + begin for begin in (0, *ends[:-1])]

    @property
    def nbytes(self) -> int:
        """Bytes allocated so far."""
        return sum(nbytes for nbytes, _ in self._parts)

    def close(self) -> None:
        """Free all parts."""
        self._parts.clear()
