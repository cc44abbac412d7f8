"""Messages that wait for their receiver, and receives that wait."""

from programs.acts.matching import Burst, Endpoints, Unsent

from .common import act, buffers, sampled

ARRAY = buffers(("f8",))

BURST = act(
    Burst,
    messages=sampled(3, 1, 20, 70),
    count=sampled(1, 0, 7, 40),
    send=sampled("Send", "Bsend"),
    receive=sampled("Recv", "Probe"),
    sendbuf=ARRAY,
    recvbuf=ARRAY,
)
UNSENT = act(
    Unsent,
    comm=sampled("base"),
    look=sampled("Test", "Iprobe", "Improbe", "Cancel", "Testall", "Get_status"),
    sendbuf=ARRAY,
    recvbuf=ARRAY,
    send=sampled("Send", "Ssend"),
)
ENDPOINTS = act(
    Endpoints,
    communicators=sampled(3, 3, 3, 130),
    count=sampled(3, 0, 4200),
    sendbuf=ARRAY,
    recvbuf=ARRAY,
)
