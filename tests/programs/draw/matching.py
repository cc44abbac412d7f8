"""Messages that wait for their receiver, and receives that wait."""

from hypothesis import strategies as st

from programs.acts.matching import PROBES, AnyTag, Burst, Endpoints, Unsent

from .common import COMM, DELAYS, LATE, RANKS, WAYS, buffers, counts, sampled


@st.composite
def burst(draw: st.DrawFn) -> Burst:
    return Burst(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        messages=draw(sampled(3, 1, 20, 70)),
        count=draw(sampled(1, 0, 7, 40)),
        send=draw(sampled("Send", "Bsend")),
        receive=draw(sampled("Recv", "Probe")),
        sendbuf=draw(buffers("f8")),
        recvbuf=draw(buffers("f8")),
        gap=draw(DELAYS),
    )


@st.composite
def unsent(draw: st.DrawFn) -> Unsent:
    return Unsent(
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        count=draw(counts()),
        look=draw(sampled("Test", "Iprobe", "Improbe", "Cancel", "Testall", "Get_status")),
        sendbuf=draw(buffers("f8")),
        recvbuf=draw(buffers("f8")),
        wild=draw(st.booleans()),
        send=draw(sampled("Send", "Ssend")),
        done=draw(WAYS),
        after=draw(DELAYS),
    )


@st.composite
def endpoints(draw: st.DrawFn) -> Endpoints:
    return Endpoints(
        comm=draw(COMM),
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        communicators=draw(sampled(3, 3, 3, 130)),
        count=draw(sampled(3, 0, 5000)),
        sendbuf=draw(buffers("f8")),
        recvbuf=draw(buffers("f8")),
        done=draw(WAYS),
    )


@st.composite
def any_tag(draw: st.DrawFn) -> AnyTag:
    return AnyTag(
        late=draw(LATE),
        source=draw(RANKS),
        dest=draw(RANKS),
        count=draw(sampled(12, 1200)),
        parts=draw(sampled((2, 3), (1, 1), (4, 1), (3, 12))),
        probe=draw(sampled(*PROBES)),
    )
