"""Messages whose matching and end are certain.

A tag of its own lets a message be received at any later time, or before it is sent. Messages of one tag go from rank to
rank in one act; or they are short, so that their sends end at once.
"""

from hypothesis import strategies as st

from programs.acts.messages import BLOCKING, NONBLOCKING, RECEIVES, Exchange, Message

from .common import COMM, DELAYS, DTYPES, LATE, RANKS, WAYS, buffers, counts, sampled

WAYS_OF_EXCHANGE = (
    *("Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace", "Irecv Send", "Irecv Isend", "Isend Recv"),
    *("Isend Irecv", "Irecv Ssend", "Irecv Issend", "Issend Recv"),
)


@st.composite
def message(draw: st.DrawFn) -> Message:
    dtype = draw(sampled(*DTYPES))
    return Message(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        count=draw(counts()),
        send=draw(sampled(*BLOCKING, *NONBLOCKING, "Isend", "Isend", "Send")),
        receive=draw(sampled(*RECEIVES, "Irecv", "Irecv", "Recv")),
        sendbuf=draw(buffers(dtype)),
        recvbuf=draw(buffers(dtype)),
        receive_first=draw(st.booleans()),
        gap=draw(DELAYS),
        wild=draw(sampled("", "", "source")),
        temporary=draw(st.booleans()),
        beside=draw(st.booleans()),
        spare=draw(sampled(0, 0, 4)),
        sent=draw(st.one_of(WAYS, sampled("drop", "free"))),
        received=draw(WAYS),
        sent_after=draw(DELAYS),
        received_after=draw(DELAYS),
    ).legal()


@st.composite
def exchange(draw: st.DrawFn) -> Exchange:
    dtype = draw(sampled(*DTYPES))
    return Exchange(
        comm=draw(COMM),
        late=draw(LATE),
        way=draw(sampled(*WAYS_OF_EXCHANGE)),
        distance=draw(sampled(1, 0, 2)),
        count=draw(counts()),
        sendbuf=draw(buffers(dtype)),
        recvbuf=draw(buffers(dtype)),
        temporary=draw(st.booleans()),
        done=draw(WAYS),
        after=draw(DELAYS),
    ).legal()
