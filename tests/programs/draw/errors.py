"""Calls that are refused."""

from hypothesis import strategies as st

from programs.acts.errors import FAULTS, RECEIVES, REFUSALS, Kept, Refused, TooLong, Unreadable

from .common import RANKS, act, buffers, sampled

ARRAY = buffers(("f8",))
PLAIN = buffers(("f8",), layouts=("plain",))

REFUSED = act(Refused, call=sampled(*REFUSALS), count=sampled(3, 0, 9000), place=sampled("device", "device", "host"))
KEPT = act(
    Kept,
    count=sampled(3, 0, 5000),
    receive=sampled(*RECEIVES),
    fault=sampled(*FAULTS),
    probe=st.booleans(),
    sendbuf=ARRAY,
    recvbuf=ARRAY,
)
TOO_LONG = act(
    TooLong,
    count=sampled(10, 400),  # longer ones end the other rank in Open MPI
    short=sampled(4, 0, 9),
    receive=sampled("Recv", "Irecv", "Mprobe", "Waitall"),
    sendbuf=PLAIN,
    recvbuf=PLAIN,
)
UNREADABLE = act(
    Unreadable,
    name=sampled("gather", "allgather", "alltoall", "bcast", "scatter"),
    place=RANKS,
    long=st.booleans(),
)
