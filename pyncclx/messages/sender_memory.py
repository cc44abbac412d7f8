"""The data of messages that have left it with their senders: where it is here, and whether it can be read."""

from __future__ import annotations

from .endpoint import CLOCK, Endpoint
from .envelope import EAGER, OFFERED, WINDOW, Envelope, Sender


def address_of(endpoint: Endpoint, bounce: int, envelope: Envelope, sender: Sender, source: int) -> int:
    """Where it is in this process, which has the sender's bounce memory at `bounce`."""
    if envelope.transport == EAGER:
        return bounce + envelope.offset
    if envelope.transport == WINDOW:
        assert endpoint.team is not None  # windows are made by all ranks
        return endpoint.team.windows[envelope.allocation].bases[source] + envelope.offset
    return endpoint.postbox.opened.data(envelope, sender)


def is_ready(endpoint: Endpoint, envelope: Envelope, sender: Sender) -> bool:
    """Whether a long message's data can be read, and its memory opened, without waiting; False of a short one."""
    opened = endpoint.postbox.opened
    if envelope.transport == WINDOW:
        known = endpoint.team is not None and envelope.allocation < len(endpoint.team.windows)  # else it is being made
    else:
        known = envelope.transport == OFFERED and opened.opens_at_once(envelope, sender)
    bounce = opened.bounce(sender) if known else None
    if bounce is None:
        return False
    ready, _ = endpoint.postbox.words_of(envelope.control, bounce)
    return endpoint.device.peek(ready, CLOCK.size) == CLOCK.pack(envelope.clock)
