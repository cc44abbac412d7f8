"""Calls that are refused."""

from hypothesis import strategies as st

from programs.acts.errors import FAULTS, RECEIVES, REFUSALS, Kept, Refused, TooLong, Unreadable

from .common import COMM, LATE, RANKS, buffers, sampled


@st.composite
def refused(draw: st.DrawFn) -> Refused:
    return Refused(
        comm=draw(COMM),
        late=draw(LATE),
        call=draw(sampled(*REFUSALS)),
        count=draw(sampled(3, 0, 9000)),
        place=draw(sampled("device", "device", "host")),
    )


@st.composite
def kept(draw: st.DrawFn) -> Kept:
    return Kept(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        count=draw(sampled(3, 0, 5000)),
        receive=draw(sampled(*RECEIVES)),
        fault=draw(sampled(*FAULTS)),
        probe=draw(st.booleans()),
        sendbuf=draw(buffers("f8")),
        recvbuf=draw(buffers("f8")),
    ).legal()


@st.composite
def too_long(draw: st.DrawFn) -> TooLong:
    return TooLong(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        count=draw(sampled(10, 400)),  # longer ones end the other rank in Open MPI
        short=draw(sampled(4, 0, 9)),
        receive=draw(sampled("Recv", "Irecv", "Mprobe", "Waitall")),
        sendbuf=draw(buffers("f8", layouts=("plain",))),
        recvbuf=draw(buffers("f8", layouts=("plain",))),
    )


@st.composite
def unreadable(draw: st.DrawFn) -> Unreadable:
    return Unreadable(
        comm=draw(COMM),
        late=draw(LATE),
        name=draw(sampled("gather", "allgather", "alltoall", "bcast", "scatter")),
        rank=draw(RANKS),
        place=draw(RANKS),
        long=draw(st.booleans()),
    )
