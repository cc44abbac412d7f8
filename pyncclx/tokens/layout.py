"""Layout of the memory that a shuffle's ranks map, and limits for few tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch.call import EARLY_THREADS, MOST_EARLY
from ..memory.layout import PACK_NBYTES, ROW_NBYTES, Layout
from .settings import Settings

# Few tokens are sent as LL128 lines together with all choices, without a previous exchange of counts. These limits
# define "few". The first two are the sizes of tables in shared memory (cuda/tokens/few_tokens.cuh).
MOST_FEW_CHOICES = 1024  # choices of all ranks: kMostFewChoices
MOST_FEW_COUNTS = 4096  # buckets times ranks: kMostFewCounts
FEW_NBYTES = 8 << 20  # all slots for lines together; not measured

# If a rank has at most this number of choices, every block counts all of them. This is faster than waiting for counts
# of the other blocks (H200, 2026-11-21; times of other limits were not stored).
ALONE_CHOICES = 4096

# Up to these numbers of tokens, of a rank and of all ranks together, blocks of 256 threads are used, because such
# blocks can be launched early. With blocks of 512 threads, 16 tokens take 0.3 µs more in a dispatch by a handle, 0.65
# µs more in a combine, and 0.1 µs less in a dispatch (2 x H200, 32 blocks, 2026-11-22).
SOME_TOKENS = 4
SOME_OF_ALL = 32

# Up to this number of tokens of all ranks, half of the blocks, of 256 threads, are enough: dispatch of 4 tokens takes
# 6.1 µs instead of 6.3 µs (2 x H200, 2026-11-22).
FEWEST_OF_ALL = 8


def grid_of(max_tokens: int, size: int, most: int, wanted: int | None) -> tuple[int, int | None]:
    """Return the blocks of a shuffle's kernels, and the threads of each.

    The number of blocks is `wanted` if given, else at most `most`. Threads are None for the device's maximum.
    """
    fewest = max_tokens * size <= FEWEST_OF_ALL
    some = max_tokens <= SOME_TOKENS or max_tokens * size <= SOME_OF_ALL
    blocks = wanted or (max(1, most // 2) if fewest else most)
    return blocks, (EARLY_THREADS if fewest or (some and blocks > MOST_EARLY) else None)


ALIGNMENT = 256  # bytes between possible starts of parts
# Packs of a token that fit a row of LL128 lines, and packs if tokens are 8-bit floats: kStepPacks.
STEP_PACKS, SCALED_STEP_PACKS = 30, 24


@dataclass(frozen=True)
class Parts:
    """Offsets in a shuffle's memory, the same on all ranks.

    The memory consists of a workspace like a lease, then the parts that `Shuffle` of cuda/tokens/shuffle.cuh describes.
    """

    lease: Layout
    few_tokens: int  # most tokens of each rank that are sent as LL128 lines
    # Packet of a slot at which a rank's number of tokens and a block's share of few choices begin.
    words_at: int
    offsets: dict[str, int]  # offsets of the other parts, by their names in `ShuffleStruct`
    end: int


def plan(settings: Settings, blocks: int, *, lines: bool) -> Parts:
    """Lay out the memory of a shuffle whose kernels have `blocks` blocks.

    `lines` says whether its ranks can send LL128 lines.
    """
    size, k, choices = settings.comm.size, settings.k, settings.max_tokens * settings.k
    steps = _steps_of_token(settings)
    few = _few_tokens(settings, blocks, steps) if lines else 0
    # A packet holds two counts, and packets are sent in pairs, as Packs.
    words_at = 2 * -(-settings.buckets // (4 * blocks))
    slot_packets = words_at + 1 + -(-few * k // blocks)
    lease = Layout(0, size, blocks, slot_packets, 0, slot_rows=_slot_rows(few, steps, blocks))
    lengths = {
        "rows": settings.capacity * settings.row_nbytes,
        "scales": settings.capacity * settings.scales_of_row * 4,
        "ways": size * choices * 4,
        "notes": size * choices * 8,
        "results": settings.max_tokens * settings.results_of_token * settings.result_nbytes,
        "values": choices * 4,
    }
    offsets, end = {}, lease.end
    for name, nbytes in lengths.items():
        offsets[name] = -(-end // ALIGNMENT) * ALIGNMENT
        end = offsets[name] + nbytes
    return Parts(lease, few, words_at, offsets, end)


def _few_tokens(settings: Settings, blocks: int, steps: int) -> int:
    size = settings.comm.size
    if size * settings.buckets > MOST_FEW_COUNTS:
        return 0
    few = min(settings.max_tokens, MOST_FEW_CHOICES // (size * settings.k))
    while few and size * blocks * 2 * ROW_NBYTES * _slot_rows(few, steps, blocks) > FEW_NBYTES:
        few -= 1
    return few


def _slot_rows(few: int, steps: int, blocks: int) -> int:
    """Return the rows of lines in a slot: a block's share of the rows of few tokens."""
    return -(-few * steps // blocks)


def _steps_of_token(settings: Settings) -> int:
    """Return the rows of LL128 lines of a token or its result."""
    packs = SCALED_STEP_PACKS if settings.scales_of_row else STEP_PACKS
    there = -(-settings.row_nbytes // (PACK_NBYTES * packs))
    back = -(-settings.result_nbytes // (PACK_NBYTES * STEP_PACKS))
    return max(there, back)
