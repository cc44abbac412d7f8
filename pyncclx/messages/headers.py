"""Lease headers of communicators' endpoints: where their kernels note that they gave up."""

from __future__ import annotations

from collections import deque

from ..backends import Device, Exported, Watch
from ..requests.open_receives import LOCK

HEADERS = 128  # in the bounce memory; of more communicators at the same time they are in memory of their own
HEADER_NBYTES = 128  # sizeof(LeaseHeader)


class Headers:
    """Headers, one for each endpoint: at the beginning of the bounce memory, and in more memory where there are many.

    Attributes
    ----------
    retired : deque of (int, Watch)
        Addresses of the headers, and the error records, of endpoints that are gone. Late kernels may still use them.
    """

    def __init__(self, device: Device, base: int) -> None:
        self._device = device
        self._free = deque(_headers_at(base))
        self._more: list[Exported] = []  # keeps the memory
        self.retired: deque[tuple[int, Watch]] = deque()

    def take(self) -> int:
        """Return the address of a cleared header."""
        self.reclaim()
        with LOCK:
            if not self._free:
                more = self._device.allocate_exported(HEADERS * HEADER_NBYTES)
                self._more.append(more)
                self._free.extend(_headers_at(more.address))
            header = self._free.popleft()
        self._device.fill_zero(header, HEADER_NBYTES)
        return header

    def reclaim(self) -> None:
        """Free what retired endpoints had, once their kernels have ended."""
        with LOCK:
            retired = [self.retired.popleft() for _ in range(len(self.retired))]
        if retired:
            self._device.synchronize()  # without the lock: a kernel may wait for a receive that needs it
        for header, watch in retired:
            self._free.append(header)
            watch.close()


def _headers_at(base: int) -> range:
    return range(base, base + HEADERS * HEADER_NBYTES, HEADER_NBYTES)
