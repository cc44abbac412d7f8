"""Streams, arrays and scratch memory that a communicator's kernels may still use.

If the program sets `comm.stream`, and in windows of a communicator with blocking calls, kernels do not run on the
stream on which the program allocated its arrays. When an array is deleted, a memory pool may reuse its memory on the
stream of the allocation, while a kernel on the other stream still uses it. So arrays are kept until such kernels have
ended. The same is necessary for nonblocking calls if an exception has dropped their requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from ..backends import Device, Upload
from ..errors import NotSupported
from .streams import ANY_CALLER, Caller, current_stream

FEW = 8  # streams that are kept even if they are idle
AT_A_LOOK = 4  # events that a call tests; with more than one, arrays do not accumulate
_NO_STREAM = object()
ALIGNMENT = 256


class End(Protocol):
    """Something that ends, such as an event."""

    def is_over(self) -> bool:
        """Return whether it has ended."""


class Kept:
    """Arrays, each with an event after which no kernel uses it.

    Attributes
    ----------
    entries : dict
        The ends and the arrays.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[End, Any]] = {}
        self._numbers = itertools.count()

    def keep(self, end: End, arrays: Any) -> None:
        """Keep arrays until the event `end`; drop arrays whose event has occurred."""
        self.sweep()
        self.add(end, arrays)

    def add(self, end: End, arrays: Any) -> None:
        """Keep arrays until a later `sweep` finds that `end` has occurred.

        A destructor may call this at any time.
        """
        self.entries[next(self._numbers)] = end, arrays

    def sweep(self) -> None:
        """Test the next few events, and drop the arrays of those that have occurred.

        So the cost of a call does not depend on the number of kernels in flight.
        """
        for _ in range(AT_A_LOOK):
            number = next(iter(self.entries), None)
            entry = None if number is None else self.entries.get(number)
            if number is None or entry is None:
                return
            if not entry[0].is_over():
                # Add it at the end before removing it here, so that an interrupt cannot lose it.
                self.add(*entry)
            self.entries.pop(number, None)


class UsedStreams(dict[int, Any]):
    """Streams by their handles; if there are more than a few, idle ones are dropped.

    A program may make a stream for each step. The last few are kept, because another thread may be about to launch on
    them.

    Attributes
    ----------
    last, before : stream
        The stream that was added last, and the one before it.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device, self._most = device, FEW
        self.last: Any = _NO_STREAM
        self.before: Any = _NO_STREAM

    def add(self, stream: Any) -> None:
        """Add a stream before something is launched on it."""
        if stream is self.last:
            return
        pointer = getattr(stream, "ptr", 0)
        self.pop(pointer, None)
        self[pointer] = stream
        self.before, self.last = self.last, stream
        if len(self) > self._most:
            self._drop_idle()
            self._most = max(FEW, 2 * len(self))

    def clear(self) -> None:
        """Remove all streams."""
        self.last = self.before = _NO_STREAM
        super().clear()

    def _drop_idle(self) -> None:
        device = self._device
        for pointer, stream in list(self.items())[:-FEW]:
            if not device.is_per_thread(stream) and device.is_idle(stream):  # per-thread streams may be busy elsewhere
                self.pop(pointer, None)


class Scratch:
    """A communicator's scratch memory on this rank; it grows, and ends with the Team.

    It is for one operation at a time: copies, lists of segments, results.
    """

    def __init__(self, device: Device, caller: Callable[[], Caller] = lambda: ANY_CALLER) -> None:
        self._device, self._caller = device, caller
        # All parts are kept, because graphs may use earlier ones; calls get the last one.
        self._parts: list[tuple[int, Upload]] = []

    def address(self, nbytes: int) -> int:
        """Return the address of at least `nbytes` bytes; allocate them if necessary.

        Raises
        ------
        NotSupported
            If memory must be allocated, and the current stream is being captured.
        """
        if not self._parts or self._parts[-1][0] < nbytes:
            enough = 1 << (nbytes - 1).bit_length()
            stream = current_stream(self._device, (), self._caller())  # the last user of the memory
            if self._device.is_capturing(stream):
                raise NotSupported(f"{nbytes} bytes of scratch memory in a captured graph: call it once before")
            self._parts.append((enough, self._device.allocate_temporary(enough, stream)))
        return self._parts[-1][1].address

    def addresses(self, *lengths: int) -> list[int]:
        """Return the addresses of consecutive parts of the scratch memory.

        `lengths` are in bytes; each part begins at a multiple of `ALIGNMENT`. Raises what `address` raises.
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
