"""Packed arguments of the kernels that move messages.

The layouts equal those of the structs in cuda/messages/point_to_point.cu. Callers use `pack` of these structs: objects
with fields would cost each message a microsecond. Fields are addresses, except lengths, clocks, ranks and tags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ..memory import layout
from ..memory.parameters import NO_CALL, TeamStruct

# `Put`, for `put_eager`: copy a short message to its slot, set its ready word.
PUT, PUT_FIELDS = struct.Struct("=QQQQQ"), "data slot ready nbytes clock"
# `OfferArgs`, for `offer`: set a long message's ready word, wait for its done word, or both. A word at 0 is left out.
OFFER, OFFER_FIELDS = struct.Struct("=QQQii"), "ready done clock peer tag"
# `Pull`, for `pull`: wait for the ready word, copy the data to the buffer, set the done word. The word at `arrived`
# counts the kernel's blocks.
PULL, PULL_FIELDS = struct.Struct("=QQQQQQQii"), "ready done arrived data buffer nbytes clock peer tag"
# `Message`, one of a batch. A message of a channel has the address of its `epoch`, and `stride`: the distance in bytes
# between the channel's slots.
MESSAGE = struct.Struct("=QQQQQQQQQIIiiiI")
MESSAGE_FIELDS = "data buffer nbytes ready done clock arrived epoch stride first_block blocks kind peer tag unused"
MOST_MESSAGES = 39  # kMostMessages
BATCH = struct.Struct(f"=II{MOST_MESSAGES * MESSAGE.size}s")  # `BatchArgs`, for `move_messages`
PUT_MESSAGE, SIGNAL_MESSAGE, PULL_MESSAGE, AWAIT_MESSAGE = range(4)  # MessageKind


def teams_of(operations: Iterable[str], *, header: int, watch: int, timeout_s: float) -> dict[str, bytes]:
    """Return the packed one-rank `Team` that each operation's kernels take first."""
    alone, timeout_ns = layout.Layout(0, 1, 1, 0, 0), int(timeout_s * 1e9)
    return {
        name: TeamStruct.of(alone, rank=0, operation=number, timeout_ns=timeout_ns, watch=watch, base=[header]).pack()
        + NO_CALL
        for number, name in enumerate(operations)
    }
