"""Streams on which a communicator has enqueued work, for waits."""

from __future__ import annotations

from typing import Any

from ..backends import Device

FEW = 8  # streams that are kept even if they are idle
_NO_STREAM = object()


class UsedStreams(dict[int, Any]):
    """Streams by their handles. Beyond a few, idle ones are dropped.

    A program may make a stream for each step. The last few are kept, because another thread may be about to launch on
    them.

    Attributes
    ----------
    last, before : stream
        The one added last, and the one before.
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
        """Remove all."""
        self.last = self.before = _NO_STREAM
        super().clear()

    def _drop_idle(self) -> None:
        device = self._device
        for pointer, stream in list(self.items())[:-FEW]:
            if not device.is_per_thread(stream) and device.is_idle(stream):  # per-thread streams may be busy elsewhere
                self.pop(pointer, None)
