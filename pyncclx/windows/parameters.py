"""Parameters of window kernels, twins of structs in cuda/windows/."""

from __future__ import annotations

from dataclasses import dataclass

from ..memory.cstruct import U32, U64, CStruct


@dataclass(slots=True, kw_only=True)
class RmaArgs(CStruct):
    """`RmaArgs` of the kernel `accumulate`; all but the count are addresses."""

    origin: U64
    compare: U64  # equal to origin if nothing is compared
    result: U64  # 0: old elements are not returned
    target: U64
    count: U64


@dataclass(slots=True, kw_only=True)
class PutArgs(CStruct):
    """`PutArgs` of the kernel `put_blocks`."""

    origin: U64  # address
    target: U64  # address
    nbytes: U64


@dataclass(slots=True, kw_only=True)
class PutSignalArgs(CStruct):
    """`PutSignalArgs` of the kernel `put_signal`; the last three are its `data`."""

    word: U64  # address of the signal
    origin: U64  # address
    target: U64  # address
    nbytes: U64  # 0: an earlier copy moves the data


@dataclass(slots=True, kw_only=True)
class WaitSignalArgs(CStruct):
    """`WaitSignalArgs` of the kernel `wait_signal`."""

    team: U64  # address
    word: U64  # address of the signal
    taken: U64  # address of the sum of counts of earlier waits
    count: U64
    signal: U32
