"""Collectives among neighbours."""

from hypothesis import strategies as st

from programs.acts.neighbors import NAMES, TOPOLOGIES, Neighbors

from .collectives import COUNTS, DEVICE, LAYOUTS
from .common import RANKS, act, buffers, sampled

ARRAY = buffers(layouts=LAYOUTS, places=DEVICE)

NEIGHBORS = act(
    Neighbors,
    topology=sampled(*TOPOLOGIES),
    edges=st.lists(st.tuples(RANKS, RANKS), min_size=1, max_size=7).map(tuple),
    name=sampled(*NAMES),
    mode=sampled("blocking", "blocking", "nonblocking", "persistent"),
    count=sampled(*COUNTS),
    counts=st.lists(sampled(1, 0, 2, 5, 300), min_size=1, max_size=4).map(tuple),
    gap=sampled(0, 0, 3),
    sendbuf=ARRAY,
    recvbuf=ARRAY,
    times=sampled(1, 1, 2, 3),
)
