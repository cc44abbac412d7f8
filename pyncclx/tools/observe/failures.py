"""Causes that ranks have reported: deaths, exceptions, GPU errors, full capacity.

Differences of versions and settings between ranks are reported here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .job import Job
from .verdict import Verdict, Words, odd_ones, site
from .waits import reached

# Errors that ranks raise because of other ranks, after a timeout or immediately.
_TIMEOUTS = ("PeerTimeout", "GridTimeout", "RanksMissing", "SendTimeout", "StepTimeout")
OF_WAITS = ("RankFailed", *_TIMEOUTS, "Aborted", "Revoked")
OF_OTHERS = (*OF_WAITS, "CollectiveMismatch")
_GPU = re.compile(r"\bcuda|illegal memory access|\bXid\b|device-side assert|uncorrectable ECC", re.IGNORECASE)


def gpu_error(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict for each failure that CUDA has reported."""
    for rank, failure in job.failures:
        if failure["kind"] not in OF_OTHERS and _GPU.search(f"{failure['kind']}: {failure['text']}"):
            sentence = f"{words.rank(rank.number)} has an error of its GPU: {_text(failure)}"
            yield Verdict("GPU error", (rank.number,), sentence, (words.place(rank),))


def dead(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict on processes that have ended.

    Other ranks have reported them, or the flight recorder shows them.
    """
    found: dict[int, str] = {}
    for _, failure in job.failures:
        reason = failure["fields"].get("reason", "")
        # A rank that ended normally, or by an exception, is not the cause.
        if not ("exception" in reason or "ended" in reason):
            found.update(dict.fromkeys(died(failure), reason))
    # After a failure, a launcher may have ended the other ranks.
    if not found and not any(failure["unhandled"] or failure["kind"] in OF_OTHERS for _, failure in job.failures):
        found = dict.fromkeys(_gone(job), "its process is gone")
    # If the rank itself has reported a failure, that failure is the cause.
    ranks = tuple(number for number in sorted(found) if number not in job.ranks or not job.ranks[number].failures)
    if ranks:
        reasons = "; ".join(dict.fromkeys(found[number] for number in ranks))
        last = "; ".join(f"{words.rank(number)}: {words.place(job.ranks.get(number))}" for number in ranks)
        yield Verdict("dead", ranks, f"{words.ranks(ranks)} died: {reasons}. {last}", _reports(job, words))


def died(failure: dict[str, Any]) -> tuple[int, ...]:
    """Return the ranks that died according to a failure."""
    return tuple(failure["fields"].get("world_ranks", ())) if failure["kind"] == "RankFailed" else ()


def _gone(job: Job) -> list[int]:
    """Return the ranks whose processes ended; if all did, the ranks with fewest calls."""
    calls = {rank.number: sum(reached(rank, comm) for comm in job.comms) for rank in job if rank.is_dead}
    all_are = len(calls) == len(job.ranks)
    return [number for number, count in calls.items() if not all_are or count == min(calls.values())]


def exception(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict for each uncaught exception, unless it is about another rank."""
    for rank, failure in job.failures:
        if failure["unhandled"] and failure["kind"] not in OF_OTHERS:
            where = f" at {site(failure['site'])}" if failure["site"] else ""
            sentence = f"{words.rank(rank.number)} ended by an exception{where}: {_text(failure)}"
            cause = "MPI error" if "MPI_ERR_" in failure["text"] else "exception"
            yield Verdict(cause, (rank.number,), sentence, _reports(job, words))


def full_capacity(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict for each message or array that did not fit at the receiver."""
    for rank, failure in job.failures:
        if failure["kind"] == "CapacityExceeded":
            sentence = f"{words.rank(rank.number)} has too little room: {failure['text']}"
            yield Verdict("full capacity", (rank.number,), sentence, (words.place(rank),))


def mismatch(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield mismatches that ranks have reported, even if the calls are overwritten."""
    for _, failure in job.failures:
        if failure["kind"] == "CollectiveMismatch":
            operations = set(re.findall(r"rank \d+ called (\w+)", failure["text"]))
            cause = "different operation" if len(operations) > 1 else "different argument"
            yield Verdict(cause, (), failure["text"], _reports(job, words))


def settings_differ(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict on versions and settings that differ."""
    differences = list(differing(job))
    if differences:
        name, values = differences[0]
        odd, usual = odd_ones(values)
        theirs = ", ".join(dict.fromkeys(_shown(values[number]) for number in odd))
        sentence = f"{name} is {theirs} on {words.ranks(odd)} and {_shown(usual)} on the others"
        evidence = tuple(f"{each}: {_by_value(values, words)}" for each, values in differences)
        yield Verdict("settings differ", odd, sentence, evidence)


def differing(job: Job) -> Iterator[tuple[str, dict[int, str | None]]]:
    """Yield name and values by rank of versions and settings that differ.

    Versions count only for packages that all ranks have loaded.
    """
    for group, needs_all in (("settings", False), ("versions", True)):
        of_ranks = {rank.number: rank.record["process"][group] for rank in job}
        for name in sorted({name for each in of_ranks.values() for name in each}):
            values = {number: each.get(name) for number, each in of_ranks.items()}
            if needs_all and None in values.values():
                continue
            if len(set(values.values())) > 1:
                yield name, values


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _by_value(values: dict[int, str | None], words: Words) -> str:
    ranks: dict[str, list[int]] = {}
    for number, value in values.items():
        ranks.setdefault(_shown(value), []).append(number)
    return "; ".join(f"{value} on {words.ranks(numbers)}" for value, numbers in ranks.items())


def _text(failure: dict[str, Any]) -> str:
    return f"{failure['kind']}: {failure['text']}".splitlines()[0]


def _reports(job: Job, words: Words) -> tuple[str, ...]:
    """Return the first failure that each rank has reported."""
    return tuple(f"{words.rank(rank.number)} reported {_text(rank.failures[0])}" for rank in job if rank.failures)
