"""Token shuffles: which rank has which expert, what lies where in a shuffle's memory, and what its kernels are told."""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import NotSupported
from ..memory.layout import MAX_RANKS, PACK_NBYTES, ROW_NBYTES, Layout

MAX_BUCKETS = 1024  # kMaxBuckets of cuda/tokens/shuffle.cuh
MAX_CHOICES = 128  # kMaxChoices
MAX_EXPERTS = 1 << 16  # expert_place has 16 bits for which of its rank's an expert is
MAX_ALL_CHOICES = 2**31 - 1  # of all ranks: kernels count rows as int
GROUP = 128  # elements with one scale: kGroup of cuda/elements/cast.cuh
ALIGNMENT = 256
MOST_FEW_CHOICES, MOST_FEW_COUNTS = 1024, 4096  # kMostFewChoices and kMostFewCounts of cuda/tokens/few_tokens.cuh
STEP_PACKS, SCALED_STEP_PACKS = 30, 24  # of rows, and of rows of 8-bit floats: kStepPacks
FEW_NBYTES = 8 << 20  # of all lines of few tokens
ALONE_CHOICES = 4096  # of a rank that every block counts for itself

SHUFFLE = struct.Struct(f"={6 * MAX_RANKS}Q5Q13q{MAX_RANKS + 1}q")  # Shuffle of cuda/tokens/shuffle.cuh, after its Team
DISPATCH = struct.Struct("=12Q3q4Q")  # DispatchArgs after its Shuffle, but for the phases
COMBINE = struct.Struct("=6Q2q4Q")  # CombineArgs likewise
COLLECT = struct.Struct("=5Q1q")  # CollectArgs
PHASES = struct.Struct("=q")
SEND, RECEIVE = 1, 2  # Phase


@dataclass(frozen=True)
class Placement:
    """Which rank has which expert.

    Attributes
    ----------
    ranks : list of lists of int
        The ranks of each expert, all of one length: with fewer ranks than replicas they are repeated.
    local_experts : list of lists of int
        The experts of each rank, in ascending order.
    """

    ranks: list[list[int]]
    local_experts: list[list[int]]

    @property
    def replicas(self) -> int:
        return len(self.ranks[0])

    def table(self) -> bytes:
        """[experts][replicas] of what expert_place of cuda/tokens/shuffle.cuh makes."""
        places = [r << 16 | self.local_experts[r].index(e) for e, ranks in enumerate(self.ranks) for r in ranks]
        return struct.pack(f"={len(places)}I", *places)

    def first_buckets(self, *, by_source: bool) -> list[int]:
        """The first bucket of each rank, and the number of all."""
        counts = [1 if by_source else len(experts) for experts in self.local_experts]
        return [sum(counts[:rank]) for rank in range(len(counts) + 1)]


def place_experts(placement: Any, num_experts: int, size: int) -> Placement:
    """Read a placement: None, one rank for each expert, or several (-1: no further one).

    Raises
    ------
    ValueError
        For another shape, an expert without a rank, or what is no rank.
    """
    if placement is None:
        placement = [expert * size // num_experts for expert in range(num_experts)]
    table = np.array(placement, np.int64)
    if table.ndim not in (1, 2) or len(table) != num_experts or table.size == 0:
        raise ValueError(
            f"placement has the shape {table.shape}; expecting ({num_experts},) or ({num_experts}, replicas), the "
            "rank or ranks of every expert"
        )
    chosen = [[rank for rank in row if rank != -1] for row in table.reshape(num_experts, -1).tolist()]
    for expert, ranks in enumerate(chosen):
        if not ranks or min(ranks) < 0 or max(ranks) >= size:
            raise ValueError(f"placement: expert {expert} is on ranks {ranks}; there are the ranks 0 to {size - 1}")
    replicas = table.size // num_experts
    repeated = [[ranks[i % len(ranks)] for i in range(replicas)] for ranks in chosen]
    local = [[expert for expert, ranks in enumerate(chosen) if rank in ranks] for rank in range(size)]
    return Placement(repeated, local)


@dataclass(frozen=True)
class Parts:
    """Offsets in a shuffle's memory, the same on all ranks: workspace, rows, …; then the end."""

    lease: Layout
    few_tokens: int  # up to so many of each rank travel as lines
    words: int  # in a slot of packets: what a block tells of few tokens
    rows: int
    scales: int
    ways: int
    notes: int
    results: int
    values: int
    end: int


def plan(
    size: int, blocks: int, buckets: int, most_choices: tuple[int, int], steps: int, nbytes: tuple[int, ...]
) -> Parts:
    """Lay out the memory of a shuffle.

    Parameters
    ----------
    most_choices : tuple of int
        The most tokens of a rank, and the choices of each.
    steps : int
        Rows of lines that a token takes, there or back; 0: between these ranks there are no lines.
    nbytes : tuple of int
        Of rows, scales, ways, notes, results and values.
    """
    tokens, k = most_choices
    few = min(tokens, MOST_FEW_CHOICES // (size * k)) if steps and size * buckets <= MOST_FEW_COUNTS else 0
    while few and size * blocks * 2 * ROW_NBYTES * -(-few * steps // blocks) > FEW_NBYTES:
        few -= 1
    words = 2 * -(-buckets // (4 * blocks))  # one packet has two counts; they are sent by Packs of two packets
    packets = words + 1 + -(-few * k // blocks)  # how many tokens, and the block's share of their choices
    lease = Layout(0, size, blocks, packets, 0, slot_rows=-(-few * steps // blocks))
    offsets = [lease.end]
    for length in nbytes:
        offsets[-1] = -(-offsets[-1] // ALIGNMENT) * ALIGNMENT
        offsets.append(offsets[-1] + length)
    return Parts(lease, few, words, *offsets)


def steps_of(row_nbytes: int, *, scaled: bool) -> int:
    """Rows of lines that a token's row takes, or one of 8-bit floats with their scales."""
    return -(-row_nbytes // (PACK_NBYTES * (SCALED_STEP_PACKS if scaled else STEP_PACKS)))


def whole(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Read an integer argument of a token shuffle.

    Raises
    ------
    ValueError
        If it is out of bounds.
    """
    number = operator.index(value)
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"Create_token_shuffle: {name} is {number}; it must be {bounds}")
    return number


def check_buckets(first: Sequence[int]) -> None:
    """Refuse more experts than the kernels' tables hold."""
    if first[-1] > MAX_BUCKETS:
        raise NotSupported(
            f"Create_token_shuffle: {first[-1]} experts, replicas counted: at most {MAX_BUCKETS} are possible with "
            "layout='expert'; use layout='source'"
        )
