"""What acts of several subjects are drawn from. The first of a list is what Hypothesis shrinks to."""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from programs.completing import ALONE, LOWER, MORE, OWN, UPPER
from programs.memory import LAYOUTS
from programs.program import Act, Buffer

DTYPES = ("f8", "f8", "i4", "u1", "f4", "i8", "c16", "i2")
# Elements: none, few, around the limits of ways of a message, long
COUNTS = (3, 1, 0, 2, 7, 16, 100, 600, 600, 3, 1, 16, 4096, 5000, 5000, 12000)
PLACES = ("device", "device", "device", "host", "alloc")
RANKS = st.integers(0, 3)
DELAYS = st.sampled_from((0, 0, 1, 2, 3, 6))
ROUNDS = st.integers(1, 3)
WAYS = st.sampled_from((*ALONE, *ALONE, *UPPER, *UPPER, *LOWER, *MORE, *OWN))


def sampled(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def buffers(
    dtypes: tuple[str, ...] = DTYPES, *, layouts: tuple[str, ...] = LAYOUTS, places: tuple[str, ...] = PLACES
) -> st.SearchStrategy[Buffer]:
    """Arrays; three of four have no derived datatype."""
    layout = st.sampled_from(("plain",) * 3 * len(layouts) + layouts)
    return st.builds(Buffer, st.sampled_from(places), st.sampled_from(dtypes), layout, st.booleans())


# By the name of a field, in whatever act it is
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "comm": sampled("base", "base", "dup", "reversed", "halves"),
    "late": sampled(*[-1] * 8, 0, 1),
    "source": RANKS,
    "dest": RANKS,
    "root": RANKS,
    "rank": RANKS,
    "count": sampled(*COUNTS),
    "rounds": ROUNDS,
    "distance": sampled(1, 0, 2),
    "sendbuf": buffers(),
    "recvbuf": buffers(),
    "temporary": st.booleans(),
    "beside": st.booleans(),
    "backwards": st.booleans(),
    "receive_first": st.booleans(),
    "together": st.booleans(),
    "gap": DELAYS,
    "spare": sampled(0, 0, 4),
    "wild": st.booleans(),
    "sent": WAYS,
    "received": WAYS,
    "done": WAYS,
    "after": DELAYS,
    "sent_after": DELAYS,
    "received_after": DELAYS,
}


def act(kind: type[Act], /, **of_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Act]:
    """Acts of a kind, with the given strategies for some fields, those of FIELDS for others."""
    known = {field.name: FIELDS[field.name] for field in dataclasses.fields(kind) if field.name in FIELDS}
    return st.builds(kind, **known | of_fields).map(lambda made: made.legal())
