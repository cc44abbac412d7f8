"""Causes that ranks have reported themselves: deaths, exceptions, GPU errors, full capacities; and what differs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .job import Job, Rank
from .verdict import Verdict
from .waits import reached
from .words import Words, site

# What ranks raise for what others did: when a wait was in vain, or at once
_TIMEOUTS = ("PeerTimeout", "GridTimeout", "RanksMissing", "SendTimeout", "StepTimeout")
OF_WAITS = ("RankFailed", *_TIMEOUTS, "Aborted", "Revoked")
OF_OTHERS = (*OF_WAITS, "CollectiveMismatch")
_GPU = re.compile(r"\bcuda|illegal memory access|\bXid\b|device-side assert|uncorrectable ECC", re.IGNORECASE)


def gpu_error(job: Job, words: Words) -> Iterator[Verdict]:
    """A failure whose text is CUDA's."""
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] not in OF_OTHERS and _GPU.search(f"{failure['kind']}: {failure['text']}"):
                sentence = f"{words.rank(rank.number)} has an error of its GPU: {_text(failure)}"
                yield Verdict(
                    cause="GPU error", ranks=(rank.number,), sentence=sentence, evidence=(words.place(rank),)
                )


def dead(job: Job, words: Words) -> Iterator[Verdict]:
    """A process that is gone, as the other ranks have reported, or else as its flight recorder shows."""
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
    if not (found or raised or late):  # else a launcher may have ended the others since
        found = dict.fromkeys(_gone(job), "its process is gone")
    found = {number: reason for number, reason in found.items() if not _has_reported(job.ranks.get(number))}
    if found:
        ranks = tuple(sorted(found))
        reasons = "; ".join(dict.fromkeys(found[number] for number in ranks))
        last = "; ".join(f"{words.rank(number)}: {words.place(job.ranks.get(number))}" for number in ranks)
        sentence = f"{words.ranks(ranks)} died: {reasons}. {last}"
        yield Verdict(cause="dead", ranks=ranks, sentence=sentence, evidence=tuple(_reports(job, words)))


def _gone(job: Job) -> list[int]:
    """The ranks whose processes are gone; where all are, those that were behind the others."""
    gone = [rank for rank in job if rank.is_dead]
    if len(gone) < len(job.ranks):
        return [rank.number for rank in gone]
    first = min((sum(reached(rank, comm) for comm in job.comms) for rank in gone), default=0)
    return [rank.number for rank in gone if sum(reached(rank, comm) for comm in job.comms) == first]


def _is_consequence(reason: str) -> bool:
    """Whether a rank ended as it should, or because it raised, for which there are other causes."""
    return "exception" in reason or "ended" in reason


def _has_reported(rank: Rank | None) -> bool:
    """Whether a rank has ended because of what it reported itself, which is what is to be explained."""
    return rank is not None and bool(rank.failures)


def exception(job: Job, words: Words) -> Iterator[Verdict]:
    """An exception that nothing has caught, unless it is about another rank."""
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
    """What a receiver had no room for."""
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] == "CapacityExceeded":
                sentence = f"{words.rank(rank.number)} has too little room: {failure['text']}"
                yield Verdict(
                    cause="full capacity", ranks=(rank.number,), sentence=sentence, evidence=(words.place(rank),)
                )


def mismatch(job: Job, words: Words) -> Iterator[Verdict]:
    """What ranks have found themselves, where no record has it any more."""
    for rank in job:
        for failure in rank.failures:
            if failure["kind"] == "CollectiveMismatch":
                operations = set(re.findall(r"rank \d+ called (\w+)", failure["text"]))
                cause = "different operation" if len(operations) > 1 else "different argument"
                yield Verdict(cause=cause, sentence=failure["text"], evidence=tuple(_reports(job, words)))


def settings_differ(job: Job, words: Words) -> Iterator[Verdict]:
    """Versions and settings that are not alike."""
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
    """The names of versions and settings that differ, with each rank's; a package may be loaded on some ranks alone."""
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
    """What each rank has raised first."""
    for rank in job:
        if rank.failures:
            yield f"{words.rank(rank.number)} reported {_text(rank.failures[0])}"
