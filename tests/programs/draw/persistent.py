"""Persistent and partitioned messages, and persistent collectives."""

from hypothesis import strategies as st

from programs.acts.persistent import Partitioned, PersistentCollectives, PersistentMessages

from .collectives import COLLECTIVES
from .common import act, sampled

PARTS = sampled((2, 3), (1, 1), (2, 2), (4, 1), (3, 12))

MESSAGES = act(
    PersistentMessages,
    send=sampled("Send_init", "Send_init", "Ssend_init", "Bsend_init"),
    receive=sampled("Recv_init", "Recv_init", "Irecv"),
    gap=st.integers(1, 2),
)
STARTED = act(
    PersistentCollectives,
    calls=st.lists(COLLECTIVES, min_size=1, max_size=3).map(tuple),
    order=st.integers(0, 3),
)
PARTITIONED = act(Partitioned, count=sampled(12, 1200, 9600), parts=PARTS)
