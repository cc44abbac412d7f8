"""Find the causes of waits: ranks that others wait for, and circles of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .job import Comm, Entry, Job, Rank
from .verdict import Verdict, Words
from .waits import Wait, current, is_receive, is_stuck, open_messages, reached, received, sent, waits


def hang(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield the cause of the waits in a job, if there are any."""
    found = waits(job)
    roots = sorted({wait.awaited for wait in found} - {wait.rank for wait in found})
    if found:
        yield _of_roots(job, words, found, roots) if roots else _of_circle(job, words, found)
    else:
        yield from _of_one(job, words)


def _of_roots(job: Job, words: Words, found: Sequence[Wait], roots: Sequence[int]) -> Verdict:
    """Return a verdict on ranks that others wait for, and that do not wait themselves."""
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
    return Verdict(cause, ranks, sentence, _lines(job, words, found))


def _first_missed(job: Job, rank: Rank, wait: Wait) -> Entry:
    """Return the first call that a rank has missed, from a waiting rank's entries."""
    comm = wait.entry["comm"]
    # The rank's calls on the communicator have been overwritten.
    if rank.has_forgotten and not rank.last(comm):
        return wait.entry
    return job.ranks[wait.rank].calls.get(comm, {}).get(reached(rank, comm) + 1, wait.entry)


def _was_stopped(job: Job, rank: Rank) -> bool:
    """Return whether another rank has reported that this rank's process was stopped."""
    details = (str(failure["fields"].get("detail", "")) for _, failure in job.failures)
    process = f"process, {rank.record['process']['pid']}, "
    return any(process in detail and ": stopped" in detail for detail in details)


def _with_waiters(job: Job, words: Words, what: str, found: Sequence[Wait], root: int) -> str:
    waiting = {wait.rank for wait in found} - {root}
    first = min(found, key=lambda wait: wait.since_ns)
    waits_in = words.waits_in(job.ranks[first.rank], first.entry)
    place = f"{what}; {words.place(job.ranks[root])}" if root in job.ranks else what
    return f"{place}; {words.ranks(waiting)} wait{'s' * (len(waiting) == 1)} for it, in {waits_in}"


def _message(job: Job, words: Words, wait: Wait) -> tuple[str, str]:
    """Return cause and sentence for a message that sender or receiver waits for."""
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
    """Return the tags of messages that were sent but not received."""
    left = sent(sender, receiver.number, comm) - received(receiver, sender.number, comm)
    return {tag for tag, count in left.items() if count > 0}


def _wanted(other: Rank, wait: Wait, comm: Comm) -> set[int]:
    """Return the tags of messages that a rank waits for from the sender."""
    receives = [entry for entry in open_messages(other) if is_receive(entry) and entry["comm"] == comm]
    return {entry["tag"] for entry in receives if entry["peer"] == wait.rank and entry["tag"] >= 0}


def _of_circle(job: Job, words: Words, found: Sequence[Wait]) -> Verdict:
    """Return a verdict on ranks that wait for each other."""
    circle = _circle(found)
    ranks = tuple(sorted({wait.rank for wait in circle}))
    messages = [wait for wait in circle if wait.kind in ("receive", "send")]
    if messages:
        awaited = messages[0].awaited
        cause, what = _message(job, words, messages[0])
        theirs = next(wait for wait in circle if wait.rank == awaited)
        waits_in = f"waits for rank {theirs.awaited} in {words.call(theirs.entry, at=True)}"
        ranks, sentence = (awaited,) if len(messages) == 1 else ranks, f"{what}; {words.rank(awaited)} {waits_in}"
        return Verdict(cause, ranks, sentence, _lines(job, words, found))
    if all(wait.kind == "lock" for wait in circle):
        cause, what = "lock cycle", "wait for locks of each other"
    elif len({wait.entry["comm"] for wait in circle if wait.kind == "call"}) > 1:
        cause, what = "order of communicators", "use communicators in different orders"
    else:
        cause, what = "stalled in a call", "wait for each other"
    sentence = f"{words.ranks(ranks)} {what}: {'; '.join(_lines(job, words, circle))}"
    return Verdict(cause, ranks, sentence, _lines(job, words, found))


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


def _of_one(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on calls that all ranks have made, but that do not end."""
    for comm in job.comms:
        members = job.of(comm)
        are_level = len({reached(rank, comm) for rank in members}) == 1
        if are_level and len(members) == len(set(comm.members)) and comm.kind == "comm":
            yield from filter(None, (_replays(words, comm, members), _in_call(words, comm, members)))


def _replays(words: Words, comm: Comm, members: Sequence[Rank]) -> Verdict | None:
    """Return a verdict if ranks made equal calls, but their kernels differ in number.

    In that case some rank has replayed a graph less often than the other ranks.
    """
    progress = {rank.number: rank.progress(comm) for rank in members}
    epochs = {number: each["epoch"] for number, each in progress.items() if each is not None}
    first, last = min(epochs.values(), default=0), max(epochs.values(), default=0)
    waiting = [rank for rank in members if rank.failures or rank.live.get("what") == "the device"]
    if len(epochs) < len(members) or first == last or not waiting or last <= _launched(members[0], comm):
        return None
    behind = tuple(number for number, epoch in epochs.items() if epoch == first)
    sentence = (
        f"{words.ranks(behind)} ran fewer operations{words.comm(comm)} on the device than the others, and made as many "
        "calls: a graph was not replayed as often"
    )
    evidence = tuple(f"{words.rank(number)}: {epoch} operations are over" for number, epoch in epochs.items())
    return Verdict("graph replays differ", behind, sentence, evidence)


def _launched(rank: Rank, comm: Comm) -> int:
    """Return the number of kernels launched by a rank's calls on a communicator."""
    progress = rank.progress(comm)
    return rank.last(comm) - (progress["skipped"] if progress else 0)


def _in_call(words: Words, comm: Comm, members: Sequence[Rank]) -> Verdict | None:
    """Return a verdict on a call that began long ago on all ranks and has not ended."""
    stuck = {rank: entry for rank in members if (entry := current(rank, comm)) and _is_in(rank, comm, entry)}
    if not stuck:
        return None
    ranks, call = tuple(rank.number for rank in stuck), words.call(next(iter(stuck.values())))
    where = "; ".join(f"{words.rank(rank.number)}: {words.place(rank)}" for rank in stuck)
    sentence = f"all ranks have called {call}, and it does not end on {words.ranks(ranks)}. {where}"
    return Verdict("stalled in a call", ranks, sentence)


def _is_in(rank: Rank, comm: Comm, entry: Entry) -> bool:
    """Return whether a rank's kernels have not completed a call that began long ago."""
    progress = rank.progress(comm)
    left = progress is not None and progress["epoch"] < _launched(rank, comm)
    return left and entry["kind"] == "collective" and entry["ended_ns"] is None and is_stuck(rank, entry)


def _lines(job: Job, words: Words, found: Iterable[Wait]) -> tuple[str, ...]:
    """Return a sentence for each wait."""
    return tuple(
        f"rank {wait.rank} waits for rank {wait.awaited} in {words.waits_in(job.ranks[wait.rank], wait.entry)}"
        for wait in found
    )
