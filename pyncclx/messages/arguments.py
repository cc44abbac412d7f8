"""Arguments of the kernels that move messages, without Team: twins of structs in cuda/messages/point_to_point.cu."""

from __future__ import annotations

import struct
from typing import NamedTuple

_PUT = struct.Struct("=QQQQQ")
_OFFER = struct.Struct("=QQQii")
_PULL = struct.Struct("=QQQQQQQii")


class Put(NamedTuple):
    """Of `put_eager`: copy a short message to its slot."""

    data: int  # address
    slot: int  # address
    ready: int  # address of the ready word
    nbytes: int
    clock: int

    def pack(self) -> bytes:
        """Return a `Put` of C++."""
        return _PUT.pack(*self)


class Offer(NamedTuple):
    """Of `offer`: set a long message's ready word, wait for its done word, or both."""

    ready: int  # address, 0: set before
    done: int  # address, 0: not waited for
    clock: int
    peer: int
    tag: int

    def pack(self) -> bytes:
        """Return what an `OfferArgs` of C++ has after its Team."""
        return _OFFER.pack(*self)


class Pull(NamedTuple):
    """Of `pull`: wait for the ready word, copy the data, set the done word."""

    ready: int  # address
    done: int  # address
    arrived: int  # address of the word that counts the kernel's blocks
    data: int  # address
    buffer: int  # address
    nbytes: int
    clock: int
    peer: int
    tag: int

    def pack(self) -> bytes:
        """Return a `Pull` of C++."""
        return _PULL.pack(*self)
