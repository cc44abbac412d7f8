"""Hypothesis draws programs: strategies by subject."""

from hypothesis import strategies as st

from programs.program import Program

from . import collectives, errors, matching, messages, objects, others, persistent, windows

MOST_ACTS = 12
SUBJECTS = {
    "messages": st.one_of(messages.message(), messages.exchange()),
    "matching": st.one_of(matching.burst(), matching.unsent()),
    "persistent": st.one_of(persistent.messages(), persistent.started_collectives(), persistent.partitioned()),
    "errors": st.one_of(errors.refused(), errors.kept(), errors.too_long(), errors.unreadable()),
    "windows": windows.window(),
    "threads": others.threads(),
    "others": st.one_of(others.fork(), others.passing(), others.busy()),
    "collectives": collectives.collective(),
    "objects": st.one_of(objects.message(), objects.exchange(), objects.collective()),
}


def programs(ranks: int, subjects: tuple[str, ...] = tuple(SUBJECTS)) -> st.SearchStrategy[Program]:
    """Programs of a number of ranks, of some subjects."""
    acts = st.lists(st.one_of([SUBJECTS[subject] for subject in subjects]), min_size=1, max_size=MOST_ACTS)
    return acts.map(lambda drawn: Program(ranks, tuple(drawn)))
