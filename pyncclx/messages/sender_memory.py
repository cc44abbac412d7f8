"""Data that stays in its sender's memory until a kernel fetches it: where it is here, and whether it can be read."""

from __future__ import annotations

from .bounce import CLOCK, READY
from .endpoint import Endpoint
from .envelope import OFFERED, WINDOW, Envelope


def address_of(endpoint: Endpoint, envelope: Envelope, source: int) -> int:
    """Return the address in this process of what a rank has in a window, or has offered."""
    if envelope.transport == WINDOW:
        assert endpoint.team is not None  # windows are made by all ranks
        return endpoint.team.windows[envelope.allocation].bases[source] + envelope.offset
    return endpoint.postbox.opened.data_address(envelope)


def is_ready(endpoint: Endpoint, envelope: Envelope) -> bool:
    """Whether a long message's data can be read, and its memory opened, without waiting; False of a short one."""
    return envelope.transport in (OFFERED, WINDOW) and can_read(endpoint, envelope)


def can_read(endpoint: Endpoint, envelope: Envelope) -> bool:
    """Whether data that is in its sender's memory can be read, and the memory opened, without waiting."""
    if envelope.transport == WINDOW:
        team = endpoint.team
        if team is None or envelope.allocation not in team.windows.by_number:  # it is being made
            return False
    opened, sender = endpoint.postbox.opened, envelope.sender
    bounce = opened.bounces.get(sender.uid) or opened.bounce_address(sender)
    if bounce is None:
        return False
    ready = bounce + READY + CLOCK.size * envelope.place
    return endpoint.device.peek(ready, CLOCK.size) == CLOCK.pack(envelope.clock)
