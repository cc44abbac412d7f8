"""What acts of several subjects are drawn from. The first of a list is what Hypothesis shrinks to."""

from typing import Any

from hypothesis import strategies as st

from programs.completing import ALONE, LOWER, MORE, OWN, UPPER
from programs.memory import LAYOUTS
from programs.program import Buffer

COMMS = ("base", "base", "dup", "reversed", "halves")
DTYPES = ("f8", "f8", "i4", "u1", "f4", "i8", "c16", "i2")
# Elements: none, few, around the limits of ways of a message, long
COUNTS = (3, 1, 0, 2, 7, 16, 100, 600, 600, 3, 1, 16, 4096, 5000, 5000, 12000)
RANKS = st.integers(0, 3)
LATE = st.sampled_from((*[-1] * 8, 0, 1))
DELAYS = st.sampled_from((0, 0, 1, 2, 3, 6))
WAYS = st.sampled_from((*ALONE, *ALONE, *UPPER, *UPPER, *LOWER, *MORE, *OWN))
COMM = st.sampled_from(COMMS)


def sampled(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def counts(draw: st.DrawFn) -> int:
    return draw(st.sampled_from(COUNTS))


@st.composite
def buffers(draw: st.DrawFn, dtype: str, *, layouts: tuple[str, ...] = LAYOUTS, places: Any = None) -> Buffer:
    place = draw(st.sampled_from(places or ("device", "device", "device", "host", "alloc")))
    layout = draw(st.sampled_from(layouts)) if draw(st.integers(0, 3)) == 3 else "plain"
    return Buffer(place, dtype, layout, named=draw(st.booleans()))
