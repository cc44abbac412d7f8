"""Lease headers of endpoints, in which kernels record timeouts."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from mpi_bootstrap.own_errors import own_error

from ...backends import Device, Event, Exported, Watch
from ...memory.retired import RETIRED
from ...requests.open_receives import LOCK

# Number of headers in the bounce memory. More simultaneous communicators need further allocations.
HEADERS = 128
HEADER_NBYTES = 128  # sizeof(LeaseHeader)


class Used(NamedTuple):
    """An endpoint's resources: header address, error record, streams by handle."""

    header: int
    watch: Watch
    streams: Mapping[int, Any]


class Headers:
    """The headers of endpoints, in the bounce memory and further memory if needed.

    Attributes
    ----------
    gone : deque of Used
        Resources of destroyed endpoints. Late kernels may still use them.
    """

    def __init__(self, device: Device, base: int) -> None:
        self._device = device
        self._free = deque(_headers_at(base))
        self._more: list[Exported] = []  # keeps the memory
        self._ending: list[tuple[list[Event], Used]] = []  # events after the last kernels, and the resources to reuse
        self.gone: deque[Used] = deque()

    def take(self) -> int:
        """Take a free header, clear it, and return its address."""
        self.reclaim()
        if not self._free:
            RETIRED.get().free()
        with LOCK:
            if not self._free:
                more = self._device.allocate_exported(HEADERS * HEADER_NBYTES)
                self._more.append(more)
                self._free.extend(_headers_at(more.address))
            header = self._free.popleft()
        self._device.fill_zero(header, HEADER_NBYTES)
        return header

    def take_back_after(self, endpoint: object, used: Used) -> None:
        """Have an endpoint's resources reclaimed after it is destroyed."""
        weakref.finalize(endpoint, self.gone.append, used).atexit = False

    def reclaim(self) -> None:
        """Free the resources of destroyed endpoints whose kernels have ended; never wait."""
        with LOCK:
            gone = [self.gone.popleft() for _ in range(len(self.gone))]
            ending, self._ending = self._ending, []
        for used in gone:
            ends = self._ends(used.streams.values())
            if ends is None:
                RETIRED.get().add(partial(self._take_back, used))
            else:
                ending.append((ends, used))
        for ends, used in ending:
            if all(end.is_over() for end in ends):
                self._take_back(used)
            else:
                with LOCK:
                    self._ending.append((ends, used))

    def _ends(self, streams: Iterable[Any]) -> list[Event] | None:
        """Record events on streams; None if one is captured, foreign or destroyed.

        A per-thread stream of another thread is foreign.
        """
        ends = []
        for stream in list(streams):
            if not self._device.can_leave(stream):
                return None
            try:
                ends.append(self._device.event())
                ends[-1].record(stream)
            except RuntimeError as error:
                if own_error(error) is None:
                    raise
                return None
        return ends

    def _take_back(self, used: Used) -> None:
        with LOCK:
            self._free.append(used.header)
        used.watch.close()


def _headers_at(base: int) -> range:
    return range(base, base + HEADERS * HEADER_NBYTES, HEADER_NBYTES)
