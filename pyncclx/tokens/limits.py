"""Limits of token shuffles of few tokens, with their sources."""

from __future__ import annotations

from ..launch.call import EARLY_THREADS, MOST_EARLY

# Few tokens travel as LL128 lines beside all choices, without an exchange of counts before. How many are few depends on
# room. The first two limits are those of tables in shared memory (cuda/tokens/few_tokens.cuh).
MOST_FEW_CHOICES = 1024  # choices of all ranks: kMostFewChoices
MOST_FEW_COUNTS = 4096  # buckets times ranks: kMostFewCounts
FEW_NBYTES = 8 << 20  # all slots for lines together; not measured

# Up to so many choices of a rank, every block counts all of them, which is faster than waiting for the other blocks
# (design_notes.md, "A token shuffle counts"; H200, 2026-11-21; times of other limits were not kept).
ALONE_CHOICES = 4096

# Up to so many tokens of a rank, or of all ranks together, blocks of 256 threads are enough, which can be launched
# early. With blocks of 512 threads, 16 tokens take 0.3 µs more in a dispatch by a handle, 0.65 µs more in a combine,
# and 0.1 µs less in a dispatch. See design_notes.md, "Few tokens are a chain of latencies"; 2 x H200, 32 blocks,
# 2026-11-22.
SOME_TOKENS = 4
SOME_OF_ALL = 32

# Up to so many tokens of all ranks, half of the blocks, of 256 threads, are enough: dispatch of 4 tokens takes 6.1 µs
# instead of 6.3 µs (design_notes.md, "Of many tokens, too"; 2 x H200, 2026-11-22).
FEWEST_OF_ALL = 8


def grid_of(max_tokens: int, size: int, most: int, wanted: int | None) -> tuple[int, int | None]:
    """Return the blocks of a shuffle's kernels, and the threads of each.

    The blocks are `wanted` if that is given, else at most `most`. The threads are None for all that the device offers.
    """
    fewest = max_tokens * size <= FEWEST_OF_ALL
    some = max_tokens <= SOME_TOKENS or max_tokens * size <= SOME_OF_ALL
    blocks = wanted or (max(1, most // 2) if fewest else most)
    return blocks, (EARLY_THREADS if fewest or (some and blocks > MOST_EARLY) else None)
