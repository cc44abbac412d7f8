"""Hypothesis draws programs: strategies by subject."""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from programs.program import Act, Program

from . import collectives, errors, matching, messages, objects, others, persistent, windows

MOST_ACTS = 12
# What each subject draws from, and how often: what takes a rank long is rare.
SUBJECTS = {
    "messages": ((messages.message(), 12), (messages.exchange(), 8)),
    "matching": ((matching.burst(), 2), (matching.unsent(), 4), (matching.endpoints(), 1), (matching.any_tag(), 2)),
    "persistent": ((persistent.messages(), 6), (persistent.started_collectives(), 6), (persistent.partitioned(), 4)),
    "errors": ((errors.refused(), 2), (errors.kept(), 2), (errors.too_long(), 2), (errors.unreadable(), 2)),
    "windows": ((windows.window(), 6),),
    "threads": ((others.threads(), 2),),
    "others": ((others.fork(), 1), (others.passing(), 2), (others.busy(), 1)),
    "collectives": ((collectives.collective(), 12),),
    "objects": ((objects.message(), 4), (objects.exchange(), 2), (objects.collective(), 4)),
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
