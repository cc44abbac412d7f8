"""The order of a communicator's launches: each follows the one before, whatever their streams are."""

from __future__ import annotations

from typing import Any

from ..backends import Device, Event, Function, Repeated
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave


class LaunchOrder:
    """Launches the kernels of one communicator on this rank, one after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Any = None  # of the last launch

    def enqueue(
        self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """Launch a kernel on `stream`; `parameters` are the bytes of its only parameter, which begins with a Team."""
        if stream is not self._stream or OPEN_RECEIVES:
            self.follow(stream)
        self._device.launch(function, grid, threads, parameters, stream, early)

    def repeat(self, repeated: Repeated, stream: Any) -> None:
        """Launch on `stream` what was prepared before."""
        if stream is not self._stream or OPEN_RECEIVES:
            self.follow(stream)
        repeated.launch(stream)

    def follow(self, stream: Any) -> None:
        """Order what is enqueued on `stream` next behind the last launch here, and before no receive that is open."""
        let_receives_leave()
        if self._stream is not None and self._stream != stream:
            self._device.order(self._stream, stream)
        self._stream = stream

    def mark(self) -> Event:
        """Return an event at the end of the last launch."""
        event = self._device.event()
        event.record(self._stream)
        return event

    def synchronize(self) -> None:
        """Wait on the host until all launches are over."""
        self._device.synchronize(self._stream)
