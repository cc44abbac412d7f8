"""Messages whose matching and end are certain.

A tag of its own lets a message be received at any later time, or before it is sent. Messages of one tag go from rank to
rank in one act; or they are short, so that their sends end at once.
"""

from hypothesis import strategies as st

from programs.acts.messages import BLOCKING, NONBLOCKING, RECEIVES, Exchange, Message

from .common import WAYS, act, sampled

WAYS_OF_EXCHANGE = (
    *("Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace", "Irecv Send", "Irecv Isend", "Isend Recv"),
    *("Isend Irecv", "Irecv Ssend", "Irecv Issend", "Issend Recv"),
)

MESSAGE = act(
    Message,
    send=sampled(*BLOCKING, *NONBLOCKING, "Isend", "Isend", "Send"),
    receive=sampled(*RECEIVES, "Irecv", "Irecv", "Recv"),
    wild=sampled("", "", "source"),
    sent=st.one_of(WAYS, sampled("drop", "free")),
)
EXCHANGE = act(Exchange, way=sampled(*WAYS_OF_EXCHANGE))
