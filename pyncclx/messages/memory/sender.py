"""Data that a kernel fetches from the sender's memory: its address, its readiness."""

from __future__ import annotations

from ..endpoint import Endpoint
from ..envelope import EMPTY, INLINE, OFFERED, WINDOW, Envelope
from .bounce import CLOCK, READY


def address_of(endpoint: Endpoint, envelope: Envelope, source: int) -> int:
    """Return the address in this process of data in a rank's window or offered memory."""
    if envelope.transport == WINDOW:
        # All ranks create windows together, so each has a team.
        assert endpoint.team is not None
        return endpoint.team.windows[envelope.allocation].bases[source] + envelope.offset
    return endpoint.postbox.opened.data_address(envelope)


def is_ready(endpoint: Endpoint, envelope: Envelope) -> bool:
    """Whether a long message's data can be read without waiting; False for short ones."""
    return envelope.transport in (OFFERED, WINDOW) and can_read(endpoint, envelope)


def can_read(endpoint: Endpoint, envelope: Envelope | None) -> bool:
    """Whether a message's data can be read without waiting for its sender.

    Memory of the sender can then be opened without waiting, too. There is no envelope if MPI has received the data.
    """
    if envelope is None or envelope.transport in (EMPTY, INLINE):
        return True
    if envelope.transport == WINDOW:
        team = endpoint.team
        # The window is being created.
        if team is None or envelope.allocation not in team.windows.by_number:
            return False
    opened, sender = endpoint.postbox.opened, envelope.sender
    bounce = opened.bounces.get(sender.uid) or opened.bounce_address(sender)
    if bounce is None:
        return False
    ready = bounce + READY + CLOCK.size * envelope.place
    return endpoint.device.peek(ready, CLOCK.size) == CLOCK.pack(envelope.clock)
