"""Messages and collectives of Python objects."""

from hypothesis import strategies as st

from programs.acts.objects import (
    COLLECTIVES,
    KINDS,
    RECEIVES,
    SENDS,
    ObjectCollective,
    ObjectExchange,
    ObjectMessage,
)

from .common import WAYS, act, sampled

WAYS_OF_EXCHANGE = "sendrecv", "irecv send", "irecv isend", "isend recv", "isend irecv", "irecv ssend", "issend recv"
KIND = sampled(*KINDS, "long", "list")

MESSAGE = act(
    ObjectMessage,
    kind=KIND,
    send=sampled(*SENDS, "isend"),
    receive=sampled(*RECEIVES, "irecv"),
    sent=st.one_of(WAYS, sampled("drop")),
)
EXCHANGE = act(ObjectExchange, way=sampled(*WAYS_OF_EXCHANGE), kind=KIND)
COLLECTIVE = act(ObjectCollective, name=sampled(*COLLECTIVES), kind=KIND, op=sampled("SUM", "SUM", "PROD", "MAX"))
