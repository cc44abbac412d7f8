"""Lease headers of communicators' endpoints: where their kernels note that they gave up."""

from __future__ import annotations

from collections import deque

from ..backends import Device, Watch
from ..errors import NotSupported
from ..requests.open_receives import LOCK

HEADERS = 128  # communicators that may have endpoints at the same time
HEADER_NBYTES = 128  # sizeof(LeaseHeader)


class Headers:
    """Headers at the beginning of the bounce memory, one for each endpoint.

    Attributes
    ----------
    retired : deque of (int, Watch)
        Addresses of the headers, and the error records, of endpoints that are gone. Late kernels may still use them.
    """

    def __init__(self, device: Device, base: int) -> None:
        self._device = device
        self._free = deque(range(base, base + HEADERS * HEADER_NBYTES, HEADER_NBYTES))
        self.retired: deque[tuple[int, Watch]] = deque()

    def take(self) -> int:
        """Return the address of a cleared header.

        Raises
        ------
        NotSupported
            All are in use.
        """
        self.reclaim()
        try:
            header = self._free.popleft()
        except IndexError:
            text = f"{HEADERS} communicators have sent or received device arrays: Free some"
            raise NotSupported(text) from None
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
