"""Causes of waits: ranks that others wait for, and circles of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .job import Comm, Entry, Job, Rank
from .verdict import Verdict
from .waits import Wait, current, is_receive, is_stuck, open_messages, reached, received, sent, waits
from .words import Words


def hang(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield the cause of the waits in a job, if there are any."""
    found = waits(job)
    if found:
        roots = sorted({wait.awaited for wait in found} - {wait.rank for wait in found})
        yield from _of_roots(job, words, found, roots) if roots else _of_circle(job, words, found)
    yield from [] if found else _of_one(job, words)


def _of_roots(job: Job, words: Words, found: Sequence[Wait], roots: Sequence[int]) -> Iterator[Verdict]:
    """Yield a verdict on ranks that others wait for, and that wait for nobody."""
    root = roots[0]
    on_it = sorted((wait for wait in found if wait.awaited == root), key=lambda wait: wait.since_ns)
    wait, rank = on_it[0], job.ranks.get(root)
    if rank is None:
        cause, what = "dead", f"{words.rank(root)} has left no record: it died, or never used pyncclx"
    elif rank.record["state"] == "ended":
        cause, what = "ended", f"the program of {words.rank(root)} has ended"
    elif rank.condition == "T" or _was_stopped(job, rank):
        cause, what = "stopped", f"{words.rank(root)} is stopped (SIGSTOP, or a debugger)"
    elif wait.kind == "compilation" or rank.live.get("what") == "its compiler":
        cause, what = "compile wait", f"{words.rank(root)} compiles {rank.live.get('detail', 'kernels')}"
    elif wait.kind == "lock":
        cause, what = "lock held", f"{words.rank(root)} has the lock of rank {wait.entry['peer']} of a window"
    elif wait.kind in ("receive", "send"):
        cause, what = _message(job, words, wait)
    else:
        missed = _first_missed(job, rank, wait)
        cause, what = "stalled before the call", f"{words.rank(root)} never called {words.call(missed)}"
    ranks = tuple(number for number in roots if number == root or cause in ("dead", "stalled before the call"))
    sentence = _with_waiters(job, words, what, found, root)
    yield Verdict(cause=cause, ranks=ranks, sentence=sentence, evidence=_lines(job, words, found))


def _first_missed(job: Job, rank: Rank, wait: Wait) -> Entry:
    """Return the first call that a rank has not made, as a waiting rank has made it."""
    comm = wait.entry["comm"]
    # The rank's calls there have been overwritten.
    if rank.has_forgotten and not rank.last(comm):
        return wait.entry
    return job.ranks[wait.rank].calls.get(comm, {}).get(reached(rank, comm) + 1, wait.entry)


def _was_stopped(job: Job, rank: Rank) -> bool:
    """Return whether another rank has reported that this rank's process was stopped."""
    details = (str(failure["fields"].get("detail", "")) for each in job for failure in each.failures)
    process = f"process, {rank.record['process']['pid']}, "
    return any(process in detail and ": stopped" in detail for detail in details)


def _with_waiters(job: Job, words: Words, what: str, found: Sequence[Wait], root: int) -> str:
    waiting = {wait.rank for wait in found} - {root}
    first = min(found, key=lambda wait: wait.since_ns)
    waits_in = words.waits_in(job.ranks[first.rank], first.entry)
    place = f"{what}; {words.place(job.ranks[root])}" if root in job.ranks else what
    return f"{place}; {words.ranks(waiting)} wait{'s' * (len(waiting) == 1)} for it, in {waits_in}"


def _message(job: Job, words: Words, wait: Wait) -> tuple[str, str]:
    """Return cause and sentence for a message that one side waits for."""
    entry, comm = wait.entry, wait.entry["comm"]
    receives = wait.kind == "receive"
    other = job.ranks.get(wait.awaited)
    if other is not None:
        tags = _left(job.ranks[wait.rank], other, comm) if receives else _wanted(other, wait, comm)
        tags.discard(entry["tag"])
        if tags and entry["tag"] >= 0:
            verb, theirs = ("sent", "waits for one") if receives else ("waits for one", "sent one")
            listed = ", ".join(map(str, sorted(tags)))
            what = (
                f"{words.rank(wait.awaited)} {verb} with tag {listed}, and {words.rank(wait.rank)} {theirs} "
                f"with tag {entry['tag']}"
            )
            return "unmatched tag", what
    did = "sent no such message" if receives else "not received it"
    what = f"{words.rank(wait.rank)} waits in {words.call(entry, at=True)}, and {words.rank(wait.awaited)} has {did}"
    return "missing message partner", what


def _left(receiver: Rank, sender: Rank, comm: Comm) -> set[int]:
    """Return the tags of messages that were sent, and not received."""
    left = sent(sender, receiver.number, comm) - received(receiver, sender.number, comm)
    return {tag for tag, count in left.items() if count > 0}


def _wanted(other: Rank, wait: Wait, comm: Comm) -> set[int]:
    """Return the tags of messages that a rank waits for from the sender."""
    receives = [entry for entry in open_messages(other) if is_receive(entry) and entry["comm"] == comm]
    return {entry["tag"] for entry in receives if entry["peer"] == wait.rank and entry["tag"] >= 0}


def _of_circle(job: Job, words: Words, found: Sequence[Wait]) -> Iterator[Verdict]:
    """Yield a verdict on ranks that wait for each other."""
    circle = _circle(found)
    ranks = tuple(sorted({wait.rank for wait in circle}))
    messages = [wait for wait in circle if wait.kind in ("receive", "send")]
    comms = {wait.entry["comm"] for wait in circle if wait.kind == "call"}
    if messages:
        cause, what = _message(job, words, messages[0])
        waits_in = f"{words.rank(messages[0].awaited)} {_in(words, circle, messages[0].awaited)}"
        sentence = f"{what}; {waits_in}"
        ranks = (messages[0].awaited,) if len(messages) == 1 else ranks
    elif all(wait.kind == "lock" for wait in circle):
        cause = "lock cycle"
        sentence = f"{words.ranks(ranks)} wait for locks of each other: {_each(job, words, circle)}"
    elif len(comms) > 1:
        cause = "order of communicators"
        sentence = f"{words.ranks(ranks)} use communicators in different orders: {_each(job, words, circle)}"
    else:
        cause, sentence = "stalled in a call", f"{words.ranks(ranks)} wait for each other: {_each(job, words, circle)}"
    yield Verdict(cause=cause, ranks=ranks, sentence=sentence, evidence=_lines(job, words, found))


def _circle(found: Sequence[Wait]) -> list[Wait]:
    """Return the waits of one circle, following the first wait of each rank."""
    after: dict[int, Wait] = {}
    for wait in sorted(found, key=lambda wait: wait.since_ns):
        after.setdefault(wait.rank, wait)
    rank, seen = next(iter(after)), list[int]()
    while rank not in seen:
        seen.append(rank)
        rank = after[rank].awaited
    return [after[each] for each in seen[seen.index(rank) :]]


def _in(words: Words, circle: Iterable[Wait], rank: int) -> str:
    wait = next((wait for wait in circle if wait.rank == rank), None)
    return f"waits for rank {wait.awaited} in {words.call(wait.entry, at=True)}" if wait is not None else "goes on"


def _each(job: Job, words: Words, circle: Iterable[Wait]) -> str:
    return "; ".join(
        f"rank {wait.rank} waits for rank {wait.awaited} in {words.waits_in(job.ranks[wait.rank], wait.entry)}"
        for wait in circle
    )


def _of_one(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on calls that all ranks have made, and that do not end."""
    for comm in job.comms:
        members = job.of(comm)
        numbers = {reached(rank, comm) for rank in members}
        if len(members) < len(set(comm.members)) or len(numbers) != 1 or comm.kind != "comm":
            continue
        yield from _replays(words, comm, members) or _in_call(words, comm, members)


def _replays(words: Words, comm: Comm, members: Sequence[Rank]) -> list[Verdict]:
    """Return a verdict if ranks made equal calls, but ran different operations.

    The numbers of operations on the device then differ: a graph was not replayed as often.
    """
    progress = {rank.number: rank.progress(comm) for rank in members}
    epochs = {number: each["epoch"] for number, each in progress.items() if each is not None}
    if len(epochs) < len(members) or max(epochs.values()) - min(epochs.values()) < 1:
        return []
    waiting = [rank for rank in members if rank.failures or rank.live.get("what") == "the device"]
    behind = tuple(number for number, epoch in epochs.items() if epoch == min(epochs.values()))
    if not waiting or max(epochs.values()) <= _launched(members[0], comm):
        return []
    sentence = (
        f"{words.ranks(behind)} ran fewer operations{words.comm(comm)} on the device than the others, and made as many "
        "calls: a graph was not replayed as often"
    )
    evidence = tuple(f"{words.rank(number)}: {epoch} operations are over" for number, epoch in epochs.items())
    return [Verdict(cause="graph replays differ", ranks=behind, sentence=sentence, evidence=evidence)]


def _launched(rank: Rank, comm: Comm) -> int:
    """Return the number of kernels launched by a rank's calls on a communicator."""
    progress = rank.progress(comm)
    return rank.last(comm) - (progress["skipped"] if progress else 0)


def _in_call(words: Words, comm: Comm, members: Sequence[Rank]) -> Iterator[Verdict]:
    """Yield a verdict on a call that began long ago on all ranks, and has not ended."""
    stuck = []
    for rank in members:
        entry, progress = current(rank, comm), rank.progress(comm)
        if entry is None or not is_stuck(rank, entry) or entry["ended_ns"] is not None:
            continue
        left = progress is not None and progress["epoch"] < _launched(rank, comm)
        if left and entry["kind"] == "collective":
            stuck.append(rank)
    if stuck:
        entry = current(stuck[0], comm)
        assert entry is not None
        ranks = tuple(rank.number for rank in stuck)
        where = "; ".join(f"{words.rank(rank.number)}: {words.place(rank)}" for rank in stuck)
        sentence = f"all ranks have called {words.call(entry)}, and it does not end on {words.ranks(ranks)}. {where}"
        yield Verdict(cause="stalled in a call", ranks=ranks, sentence=sentence)


def _lines(job: Job, words: Words, found: Sequence[Wait]) -> tuple[str, ...]:
    """Return a sentence for each wait."""
    calls = (words.waits_in(job.ranks[wait.rank], wait.entry) for wait in found)
    return tuple(
        f"rank {wait.rank} waits for rank {wait.awaited} in {call}" for wait, call in zip(found, calls, strict=True)
    )
