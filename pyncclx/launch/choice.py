"""What was chosen for a call: which kernel, on how many blocks of how many threads."""

from __future__ import annotations

from typing import NamedTuple

MOST_EARLY = 32  # multiprocessors that a kernel takes which is launched early, and one that another may follow early
# Two blocks of so many threads fit on a multiprocessor, of all kernels but those that fold packets, so that they may be
# launched early on all channels. That is worth more than twice the warps for so many bytes of a channel:
EARLY_THREADS = 256
MOST_EARLY_THREADS = MOST_EARLY * 2 * EARLY_THREADS  # of all blocks together; kMostEarlyThreads


class Choice(NamedTuple):
    """How an operation runs."""

    kernel: str
    grid: int
    threads: int | None  # of a block; None: as many as the device offers
    why: str
