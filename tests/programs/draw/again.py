"""Collectives on the same arrays."""

from hypothesis import strategies as st

from programs.acts.again import IN_PLACE, MOST, NAMES, Turn, UsedAgain

from .common import RANKS, act, sampled

Turns = tuple[Turn, ...]
_COUNTS = st.lists(st.integers(0, MOST), min_size=1, max_size=4).map(tuple)


def _turns(names: tuple[str, ...]) -> st.SearchStrategy[Turns]:
    """Few operations, so that equal calls come with other counts between them."""

    def several(names: st.SearchStrategy[str]) -> st.SearchStrategy[Turns]:
        return st.lists(st.tuples(names, _COUNTS, RANKS), min_size=3, max_size=6).map(tuple)

    return st.one_of(sampled(*names).flatmap(lambda name: several(st.just(name))), several(sampled(*names)))


CALLS = act(
    UsedAgain,
    turns=st.one_of(_turns(NAMES), _turns(IN_PLACE)),
    place=sampled("device", "device", "alloc"),
    dtype=sampled("i4", "f8", "u1"),
    given=sampled("array", "list", "tuple", "none"),
    mode=sampled("blocking", "blocking", "nonblocking"),
    in_place=st.booleans(),
)
