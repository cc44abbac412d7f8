"""State that higher packages attach to a communicator."""

from __future__ import annotations

from collections.abc import Callable, Collection

from .team import Team


class Attachment:
    """Base class of the state that a higher package attaches to a communicator."""

    is_of_messages = False
    #: Whether calls after `close` may use the attachment again; otherwise they make a new one.
    is_reusable = True

    def join(self, team: Team) -> None:
        """Join the communicator's Team; called once it is made."""

    @property
    def teams(self) -> Collection[Team]:
        """The attachment's own Teams; their kernels end with those of the communicator."""
        return ()

    def is_idle(self) -> bool:
        """Return whether nothing runs or may run again, so that `close` can be called."""
        return False

    def reading(self) -> Callable[[], bool]:
        """Return a function that says whether the communicator's windows are still read.

        It may be called after `close`.
        """
        return lambda: False

    def drain(self) -> None:
        """Wait on the host for all launches so far, and raise their errors."""

    def check(self) -> None:
        """Raise what kernels have recorded."""

    def close(self) -> None:
        """Release everything; called on all ranks when the communicator is freed."""

    def abandon(self) -> None:
        """Release everything without the other ranks, in place of `close`."""
        self.close()

    def abandon_device(self, failed: Collection[int]) -> bool:
        """Release what failed ranks make unusable; return whether that is everything."""
        return False
