"""Arguments of kernels over nodes, twins of cuda/tokens/over_nodes.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from ...memory.cstruct import I64, U64, CStruct


@dataclass(slots=True, kw_only=True)
class CrossingArgs(CStruct):
    """`CrossingArgs` after its Team. The address of an array that is left out is 0."""

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
