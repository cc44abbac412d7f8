"""The memory of a token shuffle: a window that all ranks map, and private memory.

`plan` lays out the window, and computes how many tokens are sent as LL128 lines.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..launch.call import EARLY_THREADS, MOST_EARLY, MOST_EARLY_THREADS
from ..memory.called import pack_call
from ..memory.layout import LEASE_OVERFLOW_OFFSET, PACK_NBYTES, ROW_NBYTES, Layout
from ..memory.mapped import Window, allocate_window
from ..memory.parameters import NO_LOCATIONS, TeamStruct
from ..operations import NUMBERS
from ..team import members
from .parameters import ShuffleStruct
from .rows import Handle, Outputs, Rows, aligned, output_shapes, parts_of
from .settings import Settings, array_type

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

# Up to this number of tokens of all ranks, half as many blocks, of 256 threads, are faster: dispatch of 4 tokens takes
# 6.1 µs instead of 6.3 µs (2 x H200, 2026-11-22).
FEWEST_OF_ALL = 8


def grid_of(max_tokens: int, size: int, most: int, wanted: int | None) -> tuple[int, int | None]:
    """Return the number of blocks of a shuffle's kernels, and of threads of a block.

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
    """Return how many rows of LL128 lines a slot has: a block's share of few tokens."""
    return -(-few * steps // blocks)


def _steps_of_token(settings: Settings) -> int:
    """Return how many rows of LL128 lines a token or its result takes at most."""
    packs = SCALED_STEP_PACKS if settings.scales_of_row else STEP_PACKS
    there = -(-settings.row_nbytes // (PACK_NBYTES * packs))
    back = -(-settings.result_nbytes // (PACK_NBYTES * STEP_PACKS))
    return max(there, back)


class Memory:
    """A shuffle's part of its communicator's device memory. Creation is collective."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.team = settings, settings.comm.team
        self._choose_grid()
        self.parts = plan(settings, self.blocks, lines=members.has_lines(self.team.members))
        self.window: Window = allocate_window(settings.comm, self.team.device, 0, self.parts.end)
        self.nbytes = self.window.memory.nbytes
        self.handle_parts = parts_of(output_shapes(settings))
        self.output_offsets = [part.offset for part in self.handle_parts.values()]
        self.routes_offset = aligned(list(self.handle_parts.values())[-1].end)  # shape (tokens, k), uint64
        try:
            mpi_bootstrap.agree(settings.comm, self._fill)
        except BaseException:
            self.window.close()
            raise
        self.claim = self.window.memory.address + LEASE_OVERFLOW_OFFSET
        self.team.errors.claims.append(self.claim)
        self.team.dependents.append(self)

    def _fill(self) -> None:
        """Allocate this rank's private memory, which may fail on one rank only."""
        self._view_rows()
        self._allocate_own()
        self.packed = {name: self._pack(name) for name in ("Dispatch", "Combine", "Collect")}

    def _choose_grid(self) -> None:
        settings, team = self.settings, self.team
        sharing = team.layout.sharing
        # Blocks wait for each other, so all of them must fit on the GPU at once.
        room = min(member.multiprocessors for member in team.members)
        wanted = settings.blocks and max(1, min(settings.blocks, room) // sharing)
        self.blocks, threads = grid_of(settings.max_tokens, team.size, team.layout.channels, wanted)
        self.threads = min(threads or team.threads, team.threads)
        self.early = self.blocks * self.threads <= MOST_EARLY_THREADS // sharing

    def _view_rows(self) -> None:
        """Make the arrays `data` and `scales`, which the rows of all dispatches share."""
        settings, parts = self.settings, self.parts
        capacity, scales = settings.capacity, settings.scales_of_row
        whole = self.team.device.array(self.window.owner, (self.nbytes,), np.uint8)
        rows = whole[parts.offsets["rows"] :][: capacity * settings.row_nbytes]
        self.data = rows.view(array_type(settings.rows_dtype)).reshape(capacity, settings.hidden)
        following = whole[parts.offsets["scales"] :][: capacity * scales * 4]
        self.scales = following.view(np.float32).reshape(capacity, scales)

    def _allocate_own(self) -> None:
        """Allocate this rank's private arrays; cuda/tokens/shuffle.cuh describes them."""
        settings, lease, device = self.settings, self.parts.lease, self.team.device
        self.xp: Any = np if device.name == "host" else importlib.import_module("cupy")
        self.places = device.upload(settings.placement.table())
        self.histograms = self.xp.zeros((self.blocks, settings.buckets), np.int32)
        self.matrix = self.xp.zeros((self.team.size, settings.buckets), np.int32)
        self.own_slots = self.xp.zeros((self.blocks, 2, lease.slot_packets, 2), np.uint64)
        self.own_rows = self.xp.zeros((self.blocks, 2, lease.slot_rows, ROW_NBYTES), np.uint8)

    def _pack(self, operation: str) -> bytes:
        """Return the first bytes of a kernel's parameter: a `Shuffle` for one operation.

        The kernel writes the operation to error records.
        """
        team = self.team
        packed = TeamStruct.of(
            self.parts.lease,
            rank=team.rank,
            operation=NUMBERS[operation],
            timeout_ns=team.timeout_ns,
            watch=team.errors.address,
            base=self.window.bases,
        ).pack()
        return packed + NO_LOCATIONS + pack_call(operation) + self._struct().pack()

    def _struct(self) -> ShuffleStruct:
        settings, parts = self.settings, self.parts
        return ShuffleStruct(
            **{name: [base + offset for base in self.window.bases] for name, offset in parts.offsets.items()},
            places=self.places.address,
            histograms=address_of(self.histograms),
            matrix=address_of(self.matrix),
            own_slots=address_of(self.own_slots),
            own_rows=address_of(self.own_rows),
            experts=settings.num_experts,
            replicas=settings.placement.replicas,
            k=settings.k,
            hidden=settings.hidden,
            capacity=settings.capacity,
            max_tokens=settings.max_tokens,
            few_tokens=parts.few_tokens,
            alone_choices=ALONE_CHOICES,
            words_at=parts.words_at,
            results_of_token=settings.results_of_token,
            buckets=settings.buckets,
            by_source=settings.layout == "source",
            drops=settings.overflow == "drop",
            first=settings.first_buckets,
        )

    def new_handle(self, tokens: int) -> Handle:
        """Allocate the arrays that a dispatch of `tokens` tokens writes."""
        memory = self.xp.empty(self.handle_nbytes(tokens), np.uint8)
        return self.handle_at(address_of(memory), tokens, memory)

    def handle_nbytes(self, tokens: int) -> int:
        """Return the length of the memory of a handle of `tokens` tokens."""
        return self.routes_offset + tokens * self.settings.k * 8

    def handle_at(self, address: int, tokens: int, memory: Any = None) -> Handle:
        """Return a handle in memory at an address.

        Its rows have arrays besides `data` and `scales` only if `memory` is an array of that memory.
        """
        rows = Rows(self.data, self.scales if self.scales.size else None, memory, self.handle_parts)
        outputs = Outputs(address + self.routes_offset, *map(address.__add__, self.output_offsets))
        return Handle(rows, tokens, outputs, self.window)

    def close(self) -> None:
        """Release the memory; private memory lasts until its last array is freed."""
        self.team.dependents.remove(self)
        self.team.errors.claims.remove(self.claim)
        self.window.close()
        del self.data, self.scales


def address_of(array: Any) -> int:
    """Return the address of an array of the device's library."""
    return int(MPI.Get_address(array) if isinstance(array, np.ndarray) else array.data.ptr)
