"""Collectives of arrays."""

import dataclasses

from hypothesis import strategies as st

from programs.acts.collectives import IN_PLACE, NAMES, REDUCTIONS, VECTORS, Collective

from .common import COMM, DELAYS, LATE, RANKS, WAYS, buffers, sampled

# Few, for a kernel that reduces is compiled for each datatype and operator
DTYPES = ("f8", "i4", "c16")
OPERATORS = ("SUM", "MAX", "MIN")
COUNTS = (3, 3, 1, 1, 0, 2, 7, 16, 100, 600, 600, 5000)
BLOCKS = ("plain", "strided", "pairs", "backwards", "gaps")


@st.composite
def collective(draw: st.DrawFn) -> Collective:
    name, dtype = draw(sampled(*NAMES)), draw(sampled(*DTYPES))
    layouts = ("plain",) if name in (*REDUCTIONS, *VECTORS) else BLOCKS
    places = (("device", "device", "device", "device", "alloc"), ("host",), ("device", "host"))[
        draw(sampled(0, 0, 0, 1, 2))
    ]
    sendbuf, recvbuf = (draw(buffers(dtype, layouts=layouts, places=places)) for _ in range(2))
    in_place = name in IN_PLACE and draw(st.integers(0, 4)) == 4
    act = Collective(
        comm=draw(COMM),
        late=draw(LATE),
        name=name,
        mode=draw(sampled("blocking", "nonblocking")),
        root=draw(RANKS),
        count=draw(sampled(*COUNTS)),
        counts=draw(st.lists(sampled(1, 0, 2, 5, 300), min_size=1, max_size=4).map(tuple)),
        gap=draw(sampled(0, 0, 3)),
        backwards=draw(st.booleans()),
        op=draw(sampled(*OPERATORS)) if dtype != "c16" else "SUM",
        sendbuf=sendbuf,
        recvbuf=recvbuf,
        in_place=in_place,
        nan=dtype == "f8" and draw(st.integers(0, 3)) == 3,
        temporary=draw(st.booleans()),
        beside=draw(st.booleans()),
        done=draw(WAYS),
        after=draw(DELAYS),
        times=draw(sampled(1, 1, 1, 2, 3)),
    )
    if draw(st.integers(0, 4)) == 4:
        act = dataclasses.replace(act, later=draw(sampled(1, 2, 3)))
    return act.legal()
