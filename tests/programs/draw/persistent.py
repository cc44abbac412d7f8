"""Persistent and partitioned messages, and persistent collectives."""

from hypothesis import strategies as st

from programs.acts.persistent import Partitioned, PersistentCollectives, PersistentMessages

from . import collectives
from .common import COMM, DELAYS, DTYPES, LATE, RANKS, WAYS, buffers, counts, sampled


@st.composite
def messages(draw: st.DrawFn) -> PersistentMessages:
    dtype = draw(sampled(*DTYPES))
    return PersistentMessages(
        comm=draw(COMM),
        late=draw(LATE),
        distance=draw(sampled(1, 0, 2)),
        count=draw(counts()),
        rounds=draw(st.integers(1, 3)),
        send=draw(sampled("Send_init", "Send_init", "Ssend_init", "Bsend_init")),
        receive=draw(sampled("Recv_init", "Recv_init", "Irecv")),
        sendbuf=draw(buffers(dtype)),
        recvbuf=draw(buffers(dtype)),
        receive_first=draw(st.booleans()),
        together=draw(st.booleans()),
        wild=draw(st.booleans()),
        gap=draw(st.integers(1, 2)),
        done=draw(WAYS),
        after=draw(DELAYS),
    ).legal()


@st.composite
def started_collectives(draw: st.DrawFn) -> PersistentCollectives:
    return PersistentCollectives(
        comm=draw(COMM),
        late=draw(LATE),
        calls=tuple(draw(st.lists(collectives.collective(), min_size=1, max_size=3))),
        rounds=draw(st.integers(1, 3)),
        order=draw(st.integers(0, 3)),
        together=draw(st.booleans()),
        done=draw(WAYS),
        after=draw(DELAYS),
    ).legal()


@st.composite
def partitioned(draw: st.DrawFn) -> Partitioned:
    return Partitioned(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        count=draw(sampled(12, 1200, 9600)),
        parts=draw(sampled((2, 3), (1, 1), (2, 2), (4, 1), (3, 12))),
        rounds=draw(st.integers(1, 3)),
        backwards=draw(st.booleans()),
        receive_first=draw(st.booleans()),
        gap=draw(DELAYS),
        after=draw(DELAYS),
        done=draw(WAYS),
    )
