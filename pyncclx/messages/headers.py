"""Lease headers of communicators' endpoints: where their kernels note that they gave up."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..backends import Device, Event, Exported, Watch
from ..memory.retired import RETIRED
from ..requests.open_receives import LOCK

HEADERS = 128  # in the bounce memory; of more communicators at the same time they are in memory of their own
HEADER_NBYTES = 128  # sizeof(LeaseHeader)


class Used(NamedTuple):
    """What the kernels of an endpoint use: a header's address and an error record, and their streams by handle."""

    header: int
    watch: Watch
    streams: Mapping[int, Any]


class Headers:
    """Headers, one for each endpoint: at the beginning of the bounce memory, and in more memory where there are many.

    Attributes
    ----------
    gone : deque of Used
        Of endpoints that are gone. Late kernels may still use it.
    """

    def __init__(self, device: Device, base: int) -> None:
        self._device = device
        self._free = deque(_headers_at(base))
        self._more: list[Exported] = []  # keeps the memory
        self._ending: list[tuple[list[Event], Used]] = []  # with the ends of the kernels
        self.gone: deque[Used] = deque()

    def take(self) -> int:
        """Return the address of a cleared header."""
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
        """Take back what an endpoint has used, when that is gone and its kernels have ended."""
        weakref.finalize(endpoint, self.gone.append, used).atexit = False

    def reclaim(self) -> None:
        """Take back what endpoints had that are gone, once their kernels have ended. Waits for nothing."""
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
        """Return events at the ends of streams; None if one is captured, another thread's, or destroyed."""
        ends = []
        for stream in list(streams):
            if not self._device.can_leave(stream):
                return None
            try:
                ends.append(self._device.event())
                ends[-1].record(stream)
            except RuntimeError:
                return None
        return ends

    def _take_back(self, used: Used) -> None:
        with LOCK:
            self._free.append(used.header)
        used.watch.close()


def _headers_at(base: int) -> range:
    return range(base, base + HEADERS * HEADER_NBYTES, HEADER_NBYTES)
