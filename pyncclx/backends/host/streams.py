"""Streams of the host device: there are none, since a launch returns when its kernel is done."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Event:
    """A place in the order of launches: always over."""

    def record(self, stream: object) -> None:
        """Do nothing."""

    def is_over(self) -> bool:
        """Return True."""
        return True

    def order(self, then: object) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


class HostStreams:
    """`backends.device.Streams` without streams: None stands for each, and nothing has to wait."""

    def current_stream(self) -> None:
        return None

    def external_stream(self, pointer: int) -> None:
        return None

    def new_stream(self) -> None:
        return None

    def synchronize(self, stream: object = None) -> None:
        pass

    def order(self, first: object, then: object) -> None:
        pass

    def event(self) -> Event:
        return Event()

    def can_leave(self, stream: object) -> bool:
        return True

    def is_capturing(self, stream: object) -> bool:
        return False

    def is_per_thread(self, stream: object) -> bool:
        return False

    def attached(self) -> AbstractContextManager[None]:
        return nullcontext()
