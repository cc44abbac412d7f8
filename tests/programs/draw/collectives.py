"""Collectives of arrays."""

from hypothesis import strategies as st

from programs.acts.collectives import NAMES, Collective
from programs.program import Act

from .common import act, buffers, sampled

# Few, for a kernel that reduces is compiled for each datatype and operator
DTYPES = ("f8", "i4", "c16")
OPERATORS = ("SUM", "MAX", "MIN")
COUNTS = (3, 3, 1, 1, 0, 2, 7, 16, 100, 600, 600, 5000)
LAYOUTS = ("plain", "strided", "pairs", "backwards", "gaps")
DEVICE = ("device", "device", "device", "device", "alloc")


def _on(places: tuple[str, ...]) -> st.SearchStrategy[Act]:
    array = buffers(DTYPES, layouts=LAYOUTS, places=places)
    return act(
        Collective,
        name=sampled(*NAMES),
        mode=sampled("blocking", "nonblocking"),
        count=sampled(*COUNTS),
        counts=st.lists(sampled(1, 0, 2, 5, 300), min_size=1, max_size=4).map(tuple),
        gap=sampled(0, 0, 3),
        op=sampled(*OPERATORS),
        sendbuf=array,
        recvbuf=array,
        in_place=sampled(False, False, False, False, True),
        nan=sampled(False, False, False, True),
        times=sampled(1, 1, 1, 2, 3),
        later=sampled(*[0] * 12, 1, 2, 3),
    )


COLLECTIVES = st.one_of(_on(DEVICE), _on(DEVICE), _on(DEVICE), _on(("host",)), _on(("device", "host")))
