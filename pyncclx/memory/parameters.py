"""Structs of kernel parameters (twin of cuda/protocol/layout.cuh).

They contain a communicator, the windows of buffers, and arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ..backends.compilers.numba_functions import MOST_ARRAYS
from . import called
from .cstruct import I32, I64, U32, U64, CStruct, offsets_of, sizeof
from .layout import MAX_RANKS, Layout

PACKED, SLOTS, FIXED, SENDER, PLACED = range(5)  # enum Placement

EachRankI64 = Annotated[Sequence[int], f"{MAX_RANKS}q"]
EachRankU64 = Annotated[Sequence[int], f"{MAX_RANKS}Q"]
# TransformArgs: addresses of a transform's arrays.
TransformArrays = Annotated[Sequence[int], f"{MOST_ARRAYS}Q"]


@dataclass(slots=True, kw_only=True)
class TeamStruct(CStruct):
    """The part of `Team` that is equal in all calls.

    In memory, `BufferLocations` and the packed call (`called`) follow.
    """

    rank: I32
    size: I32
    operation: U32
    channels: U32
    slot_packets: U32
    chunk_nbytes: U32
    slot_rows: U32
    early: U32 = 0
    lines_offset: U64
    packets_offset: U64
    rings_offset: U64
    timeout_ns: U64
    watch: U64
    windows: U64 = 0  # table with rows of `pack_window`; 0 without windows
    base: EachRankU64

    @classmethod
    def of(cls, layout: Layout, **others: Any) -> TeamStruct:
        """Return the struct of a communicator with this layout.

        `others` are the fields that a `Layout` does not have. The field `operation` is a number for the error record.
        """
        return cls(**{name: getattr(layout, name) for name in _OF_LAYOUT}, **others)


# The fields of a `TeamStruct` that a `Layout` has, too.
_OF_LAYOUT = (
    *("size", "channels", "slot_packets", "chunk_nbytes", "slot_rows"),
    *("lines_offset", "packets_offset", "rings_offset"),
)


@dataclass(slots=True, kw_only=True)
class BufferLocations(CStruct):
    """`Team::send` and `Team::recv`: window number + 1 and offset of each buffer."""

    send_window: U64 = 0
    send_begin: U64 = 0
    recv_window: U64 = 0
    recv_begin: U64 = 0


NO_LOCATIONS = BufferLocations().pack()
# End of a `Team` for kernels that are not collective operations.
NO_CALL = NO_LOCATIONS + called.NONE
TEAM_NBYTES = sizeof(TeamStruct) + len(NO_CALL)


@dataclass(slots=True, kw_only=True)
class ReduceArgs(CStruct):
    """The members of `ReduceArgs` (cuda/protocol/layout.cuh) that follow `team`."""

    send: U64
    recv: U64
    nbytes: U64
    root: I32 = 0


MoveArgs = ReduceArgs


@dataclass(slots=True, kw_only=True)
class AlltoallvArgs(CStruct):
    """The members of `AlltoallvArgs` (cuda/protocol/layout.cuh) that follow `team`.

    The address of an omitted array is 0.
    """

    send: U64
    recv: U64
    row_nbytes: I64
    send_rows: I64
    capacity: I64 = 0
    slot_rows: I64 = 0
    send_counts: U64 = 0
    send_displs: U64 = 0
    recv_counts: U64 = 0
    recv_displs: U64 = 0
    total: U64 = 0
    status: U64 = 0
    placement: I32
    drop: I32 = 0
    # AlltoallvArgs::fixed, for counts on the host.
    fixed_send_counts: EachRankI64 = ()
    fixed_send_displs: EachRankI64 = ()
    fixed_recv_counts: EachRankI64 = ()
    fixed_recv_displs: EachRankI64 = ()

    def numbers(self) -> list[int]:
        """Return the fields that precede the `fixed` ones."""
        return [getattr(self, name) for name in offsets_of(type(self)) if not name.startswith("fixed_")]


@dataclass(slots=True, kw_only=True)
class TransformedRows(CStruct):
    """`TransformedRows` of cuda/elements/transformed_packs.cuh."""

    send: U64
    recv: U64
    nbytes: U64  # bytes of recv, or of one rank's block of it
    columns: I64  # elements of a row of send
    arrays: TransformArrays


WINDOW_ROW_NBYTES = 8 * MAX_RANKS


def pack_window(bases: Sequence[int]) -> bytes:
    """Return a row of the table at `Team::windows`: every rank's address of a window."""
    return struct.pack(f"={MAX_RANKS}Q", *bases, *[0] * (MAX_RANKS - len(bases)))
