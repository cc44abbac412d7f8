"""The last launch that each thread has begun.

It tells an interrupted call whether its kernel is launched.
Python runs signal handlers after calls of functions of C, and where functions of Python begin. Devices set the entry
directly before the call of C that launches or enqueues, so no handler runs between the two.
"""

from __future__ import annotations

from threading import get_ident

#: The parameters of the last launch that has begun, by thread.
BEGUN: dict[int, bytes] = {}


def forget() -> None:
    """Forget this thread's last launch, before one that may have the same parameters."""
    BEGUN.pop(get_ident(), None)


def has_begun(arguments: bytes) -> bool:
    """Return whether the parameters of this thread's last launch end with these.

    An earlier launch of this thread may have had the same parameters only if `forget` was called after it.
    """
    return BEGUN.get(get_ident(), b"").endswith(arguments)
