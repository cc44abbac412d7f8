"""The choice of an operation for one call: a kernel, and how many blocks of how many threads it runs on."""

from __future__ import annotations

from typing import NamedTuple

# Multiprocessors of a kernel that is launched early, beside the one before it on the stream: one that runs and one that
# waits take no more than one operation on all channels. On 2 and 4 H200 (21 November 2026), kernels of up to 32 blocks
# took 0.3 to 0.6 us less of 3.3 to 4.3 (docs/design_notes.md, "launched early").
MOST_EARLY = 32
# Threads of a block of which two fit on a multiprocessor, in all kernels but those that fold packets: these may be
# launched early on all channels. On 2 H200 (23 November 2026), Allgather of 512 KB took 4.7 us with 512 threads and 3.7
# with these (docs/design_notes.md, "Kernels of all 64 channels").
EARLY_THREADS = 256
MOST_EARLY_THREADS = MOST_EARLY * 2 * EARLY_THREADS  # of all blocks together; kMostEarlyThreads


class Choice(NamedTuple):
    """How an operation runs."""

    kernel: str
    grid: int
    threads: int | None  # of a block; None: as many as the device offers
    why: str
