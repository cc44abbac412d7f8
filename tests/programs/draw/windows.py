"""Windows."""

from hypothesis import strategies as st

from programs.acts.windows import OPERATIONS, SYNCHRONISATIONS, Window

from .common import COMM, DELAYS, LATE, sampled


@st.composite
def window(draw: st.DrawFn) -> Window:
    return Window(
        comm=draw(COMM),
        late=draw(LATE),
        place=draw(sampled("alloc", "alloc", "host")),
        synchronisation=draw(sampled(*SYNCHRONISATIONS)),
        operations=tuple(draw(st.lists(sampled(*OPERATIONS), min_size=1, max_size=3))),
        count=draw(sampled(3, 1, 0, 700, 3000)),
        distances=tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))),
        gap=draw(DELAYS),
        refused=draw(st.integers(0, 3)) == 3,
    ).legal()
