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

from .common import COMM, DELAYS, LATE, RANKS, WAYS, sampled

WAYS_OF_EXCHANGE = "sendrecv", "irecv send", "irecv isend", "isend recv", "isend irecv", "irecv ssend", "issend recv"
KIND = sampled(*KINDS, "long", "list")


@st.composite
def message(draw: st.DrawFn) -> ObjectMessage:
    return ObjectMessage(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        kind=draw(KIND),
        send=draw(sampled(*SENDS, "isend")),
        receive=draw(sampled(*RECEIVES, "irecv")),
        receive_first=draw(st.booleans()),
        gap=draw(DELAYS),
        wild=draw(st.booleans()),
        sent=draw(st.one_of(WAYS, sampled("drop"))),
        received=draw(WAYS),
        sent_after=draw(DELAYS),
        received_after=draw(DELAYS),
    ).legal()


@st.composite
def exchange(draw: st.DrawFn) -> ObjectExchange:
    return ObjectExchange(
        comm=draw(COMM),
        late=draw(LATE),
        way=draw(sampled(*WAYS_OF_EXCHANGE)),
        distance=draw(sampled(1, 0, 2)),
        kind=draw(KIND),
        done=draw(WAYS),
        after=draw(DELAYS),
    )


@st.composite
def collective(draw: st.DrawFn) -> ObjectCollective:
    return ObjectCollective(
        comm=draw(COMM),
        late=draw(LATE),
        name=draw(sampled(*COLLECTIVES)),
        root=draw(RANKS),
        kind=draw(KIND),
        op=draw(sampled("SUM", "SUM", "PROD", "MAX")),
    ).legal()
