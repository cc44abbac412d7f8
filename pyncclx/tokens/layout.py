"""The layout of a token shuffle's memory that all ranks map."""

from __future__ import annotations

from dataclasses import dataclass

from ..memory.layout import PACK_NBYTES, ROW_NBYTES, Layout
from . import limits
from .settings import Settings

ALIGNMENT = 256  # bytes between possible starts of parts
# Packs of a row that a row of lines holds, and those of a row of 8-bit floats: kStepPacks.
STEP_PACKS, SCALED_STEP_PACKS = 30, 24


@dataclass(frozen=True)
class Parts:
    """Offsets in a shuffle's memory, the same on all ranks.

    The memory has a workspace like a lease, then the parts that `Shuffle` of cuda/tokens/shuffle.cuh describes.
    """

    lease: Layout
    few_tokens: int  # most tokens of each rank that travel as lines
    # Packet in a slot where a rank's number of tokens, and a block's share of few choices, begin.
    words_at: int
    offsets: dict[str, int]  # offsets of the other parts, by their names in `ShuffleStruct`
    end: int


def plan(settings: Settings, blocks: int, *, lines: bool) -> Parts:
    """Lay out the memory of a shuffle whose kernels have `blocks` blocks.

    `lines` is whether its ranks can send lines.
    """
    size, k, choices = settings.comm.size, settings.k, settings.max_tokens * settings.k
    steps = _steps_of_token(settings)
    few = _few_tokens(settings, blocks, steps) if lines else 0
    # A packet has two counts, and packets are sent in pairs, as Packs.
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
    if size * settings.buckets > limits.MOST_FEW_COUNTS:
        return 0
    few = min(settings.max_tokens, limits.MOST_FEW_CHOICES // (size * settings.k))
    while few and size * blocks * 2 * ROW_NBYTES * _slot_rows(few, steps, blocks) > limits.FEW_NBYTES:
        few -= 1
    return few


def _slot_rows(few: int, steps: int, blocks: int) -> int:
    """Return the rows of lines in a slot: a block's share of the steps of few tokens."""
    return -(-few * steps // blocks)


def _steps_of_token(settings: Settings) -> int:
    """Return the rows of lines that a token or its result takes."""
    packs = SCALED_STEP_PACKS if settings.scales_of_row else STEP_PACKS
    there = -(-settings.row_nbytes // (PACK_NBYTES * packs))
    back = -(-settings.result_nbytes // (PACK_NBYTES * STEP_PACKS))
    return max(there, back)
