"""Arguments of the kernels that move messages (twins of structs in cuda/messages/point_to_point.cu).

They are packed by functions, not by objects with the fields, which would cost each message a microsecond.
"""

from __future__ import annotations

import struct

PUT = struct.Struct("=QQQQQ")
OFFER = struct.Struct("=QQQii")
PULL = struct.Struct("=QQQQQQQii")


def put_arguments(*, data: int, slot: int, ready: int, nbytes: int, clock: int) -> bytes:
    """Return a `Put`, for `put_eager`: copy a short message to its slot.

    `data`, `slot` and `ready` are addresses; the last is that of the ready word.
    """
    return PUT.pack(data, slot, ready, nbytes, clock)


def offer_arguments(*, ready: int, done: int, clock: int, peer: int, tag: int) -> bytes:
    """Return an `OfferArgs` after its Team: set a long message's ready word, wait for its done word, or both.

    `ready` and `done` are addresses, or 0: the word was set before, or is not waited for.
    """
    return OFFER.pack(ready, done, clock, peer, tag)


def pull_arguments(
    *, ready: int, done: int, arrived: int, data: int, buffer: int, nbytes: int, clock: int, peer: int, tag: int
) -> bytes:
    """Return a `Pull`, for `pull`: wait for the ready word, copy the data to the buffer, set the done word.

    `ready`, `done`, `data` and `buffer` are addresses, as is `arrived`, of the word that counts the kernel's blocks.
    """
    return PULL.pack(ready, done, arrived, data, buffer, nbytes, clock, peer, tag)
