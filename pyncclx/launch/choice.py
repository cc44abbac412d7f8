"""An operation's choice for a call: a kernel, and numbers of blocks and threads."""

from __future__ import annotations

from typing import NamedTuple

# Most multiprocessors of a kernel that is launched early, while the one before it on the stream still runs. Two such
# kernels together take no more than one operation on all channels. On 2 and 4 H200 (21 November 2026), kernels of up to
# 32 blocks took 0.3 to 0.6 us less of 3.3 to 4.3 (docs/design_notes.md, "launched early").
MOST_EARLY = 32
# Two blocks of so many threads fit on a multiprocessor, in all kernels except those that reduce packets. So kernels on
# all channels may be launched early. On 2 H200 (23 November 2026), Allgather of 512 KB took 4.7 us with 512 threads and
# 3.7 with these (docs/design_notes.md, "Kernels of all 64 channels").
EARLY_THREADS = 256
MOST_EARLY_THREADS = MOST_EARLY * 2 * EARLY_THREADS  # in all blocks together; kMostEarlyThreads


class Choice(NamedTuple):
    """A kernel, its launch configuration, and the reason."""

    kernel: str
    grid: int
    threads: int | None  # threads of a block; None: as many as the device offers
    why: str
