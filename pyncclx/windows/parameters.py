"""Parameters of the kernels of windows (twins of structs in cuda/windows/rma.cu and signals.cu)."""

from __future__ import annotations

from dataclasses import dataclass

from ..memory.cstruct import U32, U64, CStruct


@dataclass(slots=True, kw_only=True)
class RmaArgs(CStruct):
    """`RmaArgs`, of `accumulate`; all but the count are addresses."""

    origin: U64
    compare: U64  # origin's, if nothing is compared
    result: U64  # 0: the elements as they were are not returned
    target: U64
    count: U64


@dataclass(slots=True, kw_only=True)
class PutArgs(CStruct):
    """`PutArgs`, of `put_blocks`."""

    origin: U64  # address
    target: U64  # address
    nbytes: U64


@dataclass(slots=True, kw_only=True)
class PutSignalArgs(CStruct):
    """`PutSignalArgs`, of `put_signal`; the last three are its `data`."""

    word: U64  # address of the signal
    origin: U64  # address
    target: U64  # address
    nbytes: U64  # 0: the data has been moved before


@dataclass(slots=True, kw_only=True)
class WaitSignalArgs(CStruct):
    """`WaitSignalArgs`, of `wait_signal`."""

    team: U64  # address
    word: U64  # address of the signal
    taken: U64  # address of the count that was waited for before
    count: U64
    signal: U32
