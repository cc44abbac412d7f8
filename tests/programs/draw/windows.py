"""Windows."""

from hypothesis import strategies as st

from programs.acts.windows import OPERATIONS, SYNCHRONISATIONS, Window
from programs.memory import LAYOUTS

from .common import act, sampled

LAYOUT = sampled(*["plain"] * len(LAYOUTS), *LAYOUTS)

WINDOW = act(
    Window,
    place=sampled("alloc", "alloc", "host"),
    synchronisation=sampled(*SYNCHRONISATIONS),
    operations=st.lists(sampled(*OPERATIONS), min_size=1, max_size=3).map(tuple),
    count=sampled(3, 1, 0, 700, 3000),
    layout=LAYOUT,
    target=LAYOUT,
    distances=st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple),
    refused=sampled(False, False, False, True),
)
