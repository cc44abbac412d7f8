"""Arguments of a token shuffle's kernels, twins of structs in cuda/tokens/."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ..memory.cstruct import I64, U64, CStruct, offsets_of
from ..memory.layout import MAX_RANKS
from ..memory.parameters import EachRankU64, TransformArrays

SEND, RECEIVE = 1, 2  # bits of Phase


class Varying(NamedTuple):
    """The addresses in a kernel's arguments that vary between otherwise equal calls."""

    begin: int  # bytes
    end: int  # bytes
    pack: Callable[..., bytes]


@dataclass(slots=True, kw_only=True)
class ShuffleStruct(CStruct):
    """The members of `Shuffle` (cuda/tokens/shuffle.cuh) that follow `team`.

    They are constant over all calls. The struct is in cuda/tokens/shuffle.cuh.
    """

    rows: EachRankU64
    scales: EachRankU64
    ways: EachRankU64
    notes: EachRankU64
    results: EachRankU64
    values: EachRankU64
    places: U64
    histograms: U64
    matrix: U64
    own_slots: U64
    own_rows: U64
    experts: I64
    replicas: I64
    k: I64
    hidden: I64
    capacity: I64
    max_tokens: I64
    few_tokens: I64
    alone_choices: I64
    words_at: I64
    results_of_token: I64
    buckets: I64
    by_source: I64
    drops: I64
    first: Annotated[Sequence[int], f"{MAX_RANKS + 1}q"]


@dataclass(slots=True, kw_only=True)
class DispatchArgs(CStruct):
    """Fields of the C++ struct `DispatchArgs` after its first field, a Shuffle.

    They are addresses of device arrays, with 0 for an array that was not passed, and sizes. The struct is in
    cuda/tokens/buckets.cuh.
    """

    tokens: U64
    experts: U64
    weights: U64
    routes: U64
    ways: U64
    token_counts: U64
    counts: U64
    offsets: U64
    total: U64
    dropped: U64
    row_experts: U64
    row_weights: U64
    token_count: I64
    expert_nbytes: I64
    reuse: I64
    transform: TransformArrays
    phases: I64 = 0


@dataclass(slots=True, kw_only=True)
class CombineArgs(CStruct):
    """Fields of the C++ struct `CombineArgs` after its first field, a Shuffle.

    They are addresses of device arrays and sizes. The struct is in cuda/tokens/combine_few.cuh.
    """

    results: U64
    ways: U64
    token_counts: U64
    row_weights: U64
    routes: U64
    out: U64
    token_count: I64
    weighted: I64
    transform: TransformArrays
    phases: I64 = 0


@dataclass(slots=True, kw_only=True)
class CollectArgs(CStruct):
    """Fields of `CollectArgs` (cuda/tokens/collect.cu) after its first field."""

    row_values: U64
    ways: U64
    token_counts: U64
    routes: U64
    out: U64
    token_count: I64
    phases: I64 = 0


def _varying(arguments: type[CStruct], first: str, count: int) -> Varying:
    begin = offsets_of(arguments)[first]
    return Varying(begin, begin + 8 * count, struct.Struct(f"={count}Q").pack)


#: The varying addresses: outputs of a dispatch; routing and output of a combine.
VARYING = {
    "Dispatch": _varying(DispatchArgs, "routes", 9),
    "Combine": _varying(CombineArgs, "ways", 5),
}


@dataclass(slots=True, kw_only=True)
class CrossingArgs(CStruct):
    """The members of `CrossingArgs` (cuda/tokens/over_nodes.cuh) that follow `team`.

    The address of an omitted array is 0.
    """

    places: U64
    local_of: U64
    node_of: U64
    proxy_of: U64
    slot_of: U64
    first: U64
    words: U64
    matrix: U64
    numbers: U64
    inbox: U64
    outbox: U64
    rank: I64
    size: I64
    node: I64
    nodes: I64
    local_rank: I64
    local_size: I64
    slots: I64
    experts: I64
    replicas: I64
    k: I64
    max_tokens: I64
    capacity: I64
    buckets: I64
    by_source: I64
    drops: I64
    chosen: U64 = 0
    weights: U64 = 0
    tokens: U64 = 0
    out: U64 = 0
    token_count: I64 = 0
    expert_nbytes: I64 = 0
    row_nbytes: I64 = 0
    routes: U64 = 0
    ways: U64 = 0
    counts: U64 = 0
    offsets: U64 = 0
    total: U64 = 0
    dropped: U64 = 0
    row_experts: U64 = 0
    row_weights: U64 = 0
    where: U64 = 0
    crossing: U64 = 0
