"""Threads, forks, communicators that come and go."""

from hypothesis import strategies as st

from programs.acts.others import Busy, Fork, Passing, Threads

from . import collectives, messages, objects, persistent
from .common import act, sampled

IN_THREADS = st.one_of(
    *(messages.MESSAGE, messages.EXCHANGE, collectives.COLLECTIVES, objects.MESSAGE),
    *(persistent.MESSAGES, persistent.STARTED),
)
PART = st.lists(IN_THREADS, min_size=1, max_size=2).map(tuple)

THREADS = act(Threads, comm=sampled("own"), parts=st.tuples(PART, PART), times=sampled(1, 1, 2, 3))
FORK = act(Fork, comm=sampled("base"), end=sampled("_exit", "exit", "raise", "SIGTERM"), wait=st.booleans())
PASSING = act(
    Passing,
    times=sampled(1, 1, 2),
    how=sampled("Dup", "Split", "Create"),
    drop=st.booleans(),
    count=sampled(3, 0, 5000),
)
BUSY = act(Busy, comm=sampled("base"), seconds=sampled(0.002, 0.01), keeps_lock=st.booleans())
