"""Progress of messages: open receives, pending sends, and the monitor thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Kept(NamedTuple):
    """Memory, or a message with its memory, that the library keeps until its use ends.

    `PendingSends` also keeps other objects with `has_ended` and `nbytes`.

    Attributes
    ----------
    has_ended : callable
        Returns whether the memory is unused. Raises if its use can never end.
    memory : object
    nbytes : int
        The size in device memory.
    """

    has_ended: Callable[[], bool]
    memory: Any
    nbytes: int = 0
