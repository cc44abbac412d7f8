"""Arguments of the kernels that move messages (twins of structs in cuda/messages/point_to_point.cu)."""

from __future__ import annotations

from dataclasses import dataclass

from ..memory.cstruct import I32, U64, CStruct


@dataclass(slots=True, kw_only=True)
class Put(CStruct):
    """`Put`, of `put_eager`: copy a short message to its slot."""

    data: U64  # address
    slot: U64  # address
    ready: U64  # address of the ready word
    nbytes: U64
    clock: U64


@dataclass(slots=True, kw_only=True)
class Offer(CStruct):
    """`OfferArgs` after its Team: set a long message's ready word, wait for its done word, or both."""

    ready: U64  # address, 0: set before
    done: U64  # address, 0: not waited for
    clock: U64
    peer: I32
    tag: I32


@dataclass(slots=True, kw_only=True)
class Pull(CStruct):
    """`Pull`, of `pull`: wait for the ready word, copy the data, set the done word."""

    ready: U64  # address
    done: U64  # address
    arrived: U64  # address of the word that counts the kernel's blocks
    data: U64  # address
    buffer: U64  # address
    nbytes: U64
    clock: U64
    peer: I32
    tag: I32
