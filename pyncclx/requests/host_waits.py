"""Waits of the host for the device at the end of calls that complete requests.

A call that completes many lets the host wait once: each wait takes some 12 µs though all but the first have nothing to
wait for (PyFR with 4 ranks on an H200, November 2026).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class _Gathered(threading.local):
    """The waits of the call that this thread is in, by what they are for; None outside of calls that gather them."""

    waits: dict[Hashable, Callable[[], None]] | None = None


_GATHERED = _Gathered()


def wait_for(what: Hashable, wait: Callable[[], None]) -> None:
    """Wait on the host, now or at the end of the block that gathers waits: once for what several requests share."""
    if _GATHERED.waits is None:
        wait()
    else:
        _GATHERED.waits[what] = wait


@contextmanager
def gathered(add: Callable[[Exception], None]) -> Iterator[None]:
    """Let the host wait at the end of the block; call `add` with what the waits raise."""
    before, _GATHERED.waits = _GATHERED.waits, {}
    try:
        yield
    finally:
        waits, _GATHERED.waits = _GATHERED.waits, before
        for wait in waits.values():
            try:
                wait()
            except Exception as error:
                add(error)
