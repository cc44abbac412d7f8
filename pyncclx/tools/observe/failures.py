"""Causes that ranks have reported: deaths, exceptions, GPU errors, full capacity.

Versions and settings that differ between ranks are here, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .job import Job, Rank
from .verdict import Verdict
from .waits import reached
from .words import Words, site

# Errors that ranks raise because of others, after a timeout or at once.
_TIMEOUTS = ("PeerTimeout", "GridTimeout", "RanksMissing", "SendTimeout", "StepTimeout")
OF_WAITS = ("RankFailed", *_TIMEOUTS, "Aborted", "Revoked")
OF_OTHERS = (*OF_WAITS, "CollectiveMismatch")
_GPU = re.compile(r"\bcuda|illegal memory access|\bXid\b|device-side assert|uncorrectable ECC", re.IGNORECASE)


def gpu_error(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict for each failure whose text is CUDA's."""
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] not in OF_OTHERS and _GPU.search(f"{failure['kind']}: {failure['text']}"):
                sentence = f"{words.rank(rank.number)} has an error of its GPU: {_text(failure)}"
                yield Verdict(
                    cause="GPU error", ranks=(rank.number,), sentence=sentence, evidence=(words.place(rank),)
                )


def dead(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict on processes that have ended.

    The other ranks have reported them; otherwise the flight recorder shows them.
    """
    found: dict[int, str] = {}
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] == "RankFailed":
                reason = failure["fields"].get("reason", "")
                if not _is_consequence(reason):
                    found.update(dict.fromkeys(failure["fields"].get("world_ranks", ()), reason))
    reported = [failure for rank in job for failure in rank.failures]
    raised = any(failure["unhandled"] and failure["kind"] not in OF_OTHERS for failure in reported)
    late = any(failure["kind"] in OF_OTHERS for failure in reported)
    # After a failure, a launcher may have ended the other ranks.
    if not (found or raised or late):
        found = dict.fromkeys(_gone(job), "its process is gone")
    found = {number: reason for number, reason in found.items() if not _has_reported(job.ranks.get(number))}
    if found:
        ranks = tuple(sorted(found))
        reasons = "; ".join(dict.fromkeys(found[number] for number in ranks))
        last = "; ".join(f"{words.rank(number)}: {words.place(job.ranks.get(number))}" for number in ranks)
        sentence = f"{words.ranks(ranks)} died: {reasons}. {last}"
        yield Verdict(cause="dead", ranks=ranks, sentence=sentence, evidence=tuple(_reports(job, words)))


def _gone(job: Job) -> list[int]:
    """Return the ranks whose processes have ended; if all, those behind the others."""
    gone = [rank for rank in job if rank.is_dead]
    if len(gone) < len(job.ranks):
        return [rank.number for rank in gone]
    first = min((sum(reached(rank, comm) for comm in job.comms) for rank in gone), default=0)
    return [rank.number for rank in gone if sum(reached(rank, comm) for comm in job.comms) == first]


def _is_consequence(reason: str) -> bool:
    """Return whether a rank ended normally, or by an exception with its own cause."""
    return "exception" in reason or "ended" in reason


def _has_reported(rank: Rank | None) -> bool:
    """Return whether a rank has reported a failure, which is the one to explain."""
    return rank is not None and bool(rank.failures)


def exception(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict for each uncaught exception, unless it is about another rank."""
    for rank in job:
        for failure in rank.failures:
            if failure["unhandled"] and failure["kind"] not in OF_OTHERS:
                where = f" at {site(failure['site'])}" if failure["site"] else ""
                sentence = f"{words.rank(rank.number)} ended by an exception{where}: {_text(failure)}"
                cause = "MPI error" if "MPI_ERR_" in failure["text"] else "exception"
                yield Verdict(
                    cause=cause, ranks=(rank.number,), sentence=sentence, evidence=tuple(_reports(job, words))
                )


def full_capacity(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict for each message or array that a receiver had no room for."""
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] == "CapacityExceeded":
                sentence = f"{words.rank(rank.number)} has too little room: {failure['text']}"
                yield Verdict(
                    cause="full capacity", ranks=(rank.number,), sentence=sentence, evidence=(words.place(rank),)
                )


def mismatch(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield mismatches that ranks have found, even of calls no longer in records."""
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] == "CollectiveMismatch":
                operations = set(re.findall(r"rank \d+ called (\w+)", failure["text"]))
                cause = "different operation" if len(operations) > 1 else "different argument"
                yield Verdict(cause=cause, sentence=failure["text"], evidence=tuple(_reports(job, words)))


def settings_differ(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict on versions and settings that differ."""
    differences = list(differing(job))
    if differences:
        name, values = differences[0]
        usual, _ = Counter(values.values()).most_common(1)[0]
        odd = tuple(number for number, value in values.items() if value != usual)
        theirs = ", ".join(dict.fromkeys(_shown(values[number]) for number in odd))
        sentence = f"{name} is {theirs} on {words.ranks(odd)} and {_shown(usual)} on the others"
        evidence = tuple(f"{each}: {_by_value(values, words)}" for each, values in differences)
        yield Verdict(cause="settings differ", ranks=odd, sentence=sentence, evidence=evidence)


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


def _reports(job: Job, words: Words) -> Iterator[str]:
    """Yield the first failure that each rank has reported."""
    for rank in job:
        if rank.failures:
            yield f"{words.rank(rank.number)} reported {_text(rank.failures[0])}"
