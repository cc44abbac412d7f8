"""Threads, forks, communicators that come and go."""

from hypothesis import strategies as st

from programs.acts.others import Busy, Fork, Passing, Threads

from . import collectives, messages, objects
from .common import COMM, DELAYS, LATE, RANKS, sampled

IN_THREADS = st.one_of(messages.message(), messages.exchange(), collectives.collective(), objects.message())


@st.composite
def threads(draw: st.DrawFn) -> Threads:
    part = st.lists(IN_THREADS, min_size=1, max_size=2).map(tuple)
    return Threads(parts=tuple(draw(part) for _ in range(2)), times=draw(sampled(1, 1, 2, 3))).legal()


@st.composite
def fork(draw: st.DrawFn) -> Fork:
    return Fork(rank=draw(RANKS), end=draw(sampled("_exit", "exit", "raise", "SIGTERM")), wait=draw(st.booleans()))


@st.composite
def passing(draw: st.DrawFn) -> Passing:
    return Passing(
        comm=draw(COMM),
        late=draw(LATE),
        times=draw(sampled(1, 1, 2)),
        how=draw(sampled("Dup", "Split", "Create")),
        drop=draw(st.booleans()),
        count=draw(sampled(3, 0, 5000)),
        after=draw(DELAYS),
    )


@st.composite
def busy(draw: st.DrawFn) -> Busy:
    return Busy(rank=draw(RANKS), seconds=draw(sampled(0.002, 0.01)), keeps_lock=draw(st.booleans()))
