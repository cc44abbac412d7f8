"""Hypothesis draws programs: strategies by subject."""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from programs.program import Act, Program

from . import (
    again,
    collectives,
    errors,
    inter,
    matching,
    messages,
    neighbors,
    objects,
    others,
    persistent,
    wild,
    windows,
)

MOST_ACTS = 12
# What each subject draws from, and how often: what takes a rank long is rare.
SUBJECTS = {
    "messages": ((messages.MESSAGE, 12), (messages.EXCHANGE, 8)),
    "matching": ((matching.BURST, 2), (matching.UNSENT, 4), (matching.ENDPOINTS, 1)),
    "wild": ((wild.ANY_TAG, 2), (wild.OPEN, 3)),
    "persistent": ((persistent.MESSAGES, 6), (persistent.STARTED, 6), (persistent.PARTITIONED, 4)),
    "errors": ((errors.REFUSED, 2), (errors.KEPT, 2), (errors.TOO_LONG, 2), (errors.UNREADABLE, 2)),
    "windows": ((windows.WINDOW, 6),),
    "threads": ((others.THREADS, 2),),
    "others": ((others.FORK, 1), (others.PASSING, 2), (others.BUSY, 1)),
    "collectives": ((collectives.COLLECTIVES, 12),),
    "again": ((again.CALLS, 4),),
    "inter": ((inter.INTER, 3),),
    "neighbors": ((neighbors.NEIGHBORS, 5),),
    "objects": ((objects.MESSAGE, 4), (objects.EXCHANGE, 2), (objects.COLLECTIVE, 4)),
}


def programs(ranks: int, subjects: tuple[str, ...] = tuple(SUBJECTS)) -> st.SearchStrategy[Program]:
    """Programs of a number of ranks, of some subjects."""
    weighted = [pair for subject in subjects for pair in SUBJECTS[subject]]
    choices = st.sampled_from([strategy for strategy, weight in weighted for _ in range(weight)])
    acts = st.lists(choices.flatmap(lambda chosen: chosen), min_size=1, max_size=MOST_ACTS)
    fresh = st.sampled_from((False, False, False, True))
    return st.builds(lambda drawn, new: Program(ranks, tuple(of(ranks, act) for act in drawn), new), acts, fresh)


def of(ranks: int, act: Act) -> Act:
    """Return an act as it is legal on so many ranks: each message of a single one is to itself."""
    if ranks > 1:
        return act
    changes: dict[str, Any] = {}
    if hasattr(act, "source"):
        changes = {"source": 0, "dest": 0}
    elif hasattr(act, "parts") and not hasattr(act, "rounds"):
        changes = {"parts": tuple(tuple(of(ranks, each) for each in part) for part in act.parts)}
    return dataclasses.replace(act, **changes).legal()
