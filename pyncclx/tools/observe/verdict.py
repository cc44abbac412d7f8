"""Verdicts on a job: causes, and names for its ranks, communicators and calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple, TypeVar

from .job import Comm, Entry, Job, Rank

T = TypeVar("T")


class Verdict(NamedTuple):
    """A cause of a job's problem, with evidence.

    Attributes
    ----------
    cause : str
        Name of the cause, one of `CAUSES`.
    ranks : tuple of int
        Ranks in MPI.COMM_WORLD with the cause.
    sentence : str
    evidence : tuple of str
    """

    cause: str
    ranks: tuple[int, ...]
    sentence: str
    evidence: tuple[str, ...] = ()


#: Meaning of each cause, by name. Verdicts are in this order: the first explains the rest.
CAUSES = {
    "GPU error": "a rank's GPU has failed, or CUDA has refused something",
    "dead": "a rank's process died",
    "full capacity": "a rank was sent more than it has room for",
    "exception": "a rank's program ended by an exception",
    "settings differ": "versions of packages, or PYNCCLX_ variables, are not alike on all ranks",
    "different operation": "ranks made different calls at the same place of a communicator's order",
    "different argument": "they made the same call with different types, counts, roots or operators",
    "MPI error": "MPI has refused something, often since the calls of ranks do not fit each other",
    "stopped": "a rank's process is stopped, by SIGSTOP or a debugger",
    "compile wait": "a rank compiles a kernel that all wait for",
    "ended": "a rank's program has ended while others wait for it",
    "unmatched tag": "a message was sent and another one is waited for",
    "missing message partner": "nobody has sent, or received, what a rank waits for",
    "lock cycle": "ranks wait for each other's locks",
    "lock held": "a rank keeps a lock that others wait for",
    "order of communicators": "ranks use communicators in different orders, and wait for each other",
    "graph replays differ": "ranks have run different numbers of operations on the device, as of a graph",
    "stalled before the call": "a rank has not made a call that the others wait in",
    "stalled in a call": "all ranks have made a call, and it does not end",
    "slow rank": "a rank comes late again and again; nothing hangs",
}


def odd_ones(values: dict[int, T]) -> tuple[tuple[int, ...], T]:
    """Return the ranks whose value differs from the most common one, and that value."""
    usual = Counter(values.values()).most_common(1)[0][0]
    return tuple(rank for rank, value in values.items() if value != usual), usual


class Words:
    """Names for the ranks, communicators and calls of a job.

    Parameters
    ----------
    job : Job
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._hosts = {rank.host for rank in job}

    def rank(self, number: int) -> str:
        """Return a name such as "rank 3 on host b"; without the host if there is only one."""
        rank = self._job.ranks.get(number)
        return f"rank {number}" + (f" on {rank.host}" if rank is not None and len(self._hosts) > 1 else "")

    def ranks(self, numbers: Iterable[int]) -> str:
        """Return a name such as "ranks 0, 2 to 5"."""
        listed = sorted(set(numbers))
        if len(listed) == 1:
            return self.rank(listed[0])
        runs: list[list[int]] = []
        for number in listed:
            if runs and runs[-1][-1] == number - 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        parts = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
        return f"ranks {', '.join(parts)}"

    def comm(self, comm: Comm) -> str:
        """Return a text such as " of 'rows'"; empty for MPI.COMM_WORLD."""
        name = next((rank.names[comm] for rank in self._job if rank.names.get(comm)), "")
        if name == "MPI_COMM_WORLD" and comm.number == 0:
            return ""
        what = "window" if comm.kind == "win" else "communicator"
        ranks = "all ranks" if len(comm.world) == self._job.size else f"ranks {', '.join(map(str, comm.world[:8]))}"
        return f" of {name!r}" if name else f" of {what} {comm.number} of {ranks}"

    def comm_name(self, comm: Comm) -> str:
        """Return a name such as "'rows'"; "MPI.COMM_WORLD" if `comm` returns no text."""
        return self.comm(comm).removeprefix(" of ") or "MPI.COMM_WORLD"

    def call(self, entry: Entry, *, at: bool = False) -> str:
        """Return a name such as "Allreduce #412" or "Recv from rank 1 with tag 7".

        With `at`, the program's line follows.
        """
        text = str(entry["operation"])
        if entry["kind"] == "message":
            receives = entry["operation"].lower().endswith("recv")
            peer = "any rank" if entry["peer"] < 0 else f"rank {entry['peer']}"
            tag = "any tag" if entry["tag"] < 0 else f"tag {entry['tag']}"
            text += f" {'from' if receives else 'to'} {peer} with {tag}"
        elif entry["kind"] == "access":
            text += f" of rank {entry['peer']}" if entry["peer"] >= 0 else ""
        elif entry["number"]:
            text += f" #{entry['number']}"
        return text + self.comm(entry["comm"]) + (_at(entry) if at else "")

    def waits_in(self, rank: Rank, entry: Entry) -> str:
        """Return the call that a rank is in, with its present line if that is known."""
        stack = rank.stack
        if stack and stack["inside"] and stack["site"]:
            return f"{self.call(entry)} at {site(stack['site'])}"
        return self.call(entry, at=True)

    def place(self, rank: Rank | None) -> str:
        """Return where a rank is, such as "in Bcast #411 at train.py:88"."""
        if rank is None:
            return "it has left no record"
        stack, entries = rank.stack, rank.entries
        states = {
            "its process is gone; ": rank.is_dead,
            "its program has ended; ": rank.record["state"] == "ended",
            "its process is stopped (SIGSTOP, or a debugger); ": rank.condition == "T",
            f"it waits for {rank.live.get('what')}; ": bool(rank.live),
            f"it is at {site(stack.get('site', ''))}; ": bool(stack) and not stack["inside"],
        }
        now = next((text for text, is_so in states.items() if is_so), "")
        return now + (f"its last call was {self.call(entries[-1], at=True)}" if entries else "it has called nothing")


def _at(entry: Entry) -> str:
    """Return the line of a call; cached calls have the line of the first equal call."""
    if not entry["site"]:
        return ""
    first = "first made " * ("repeated" in entry["flags"] and "persistent" not in entry["flags"])
    return f" {first and '('}{first}at {site(entry['site'])}{first and ')'}"


def site(text: str) -> str:
    """Return a line of the program with its file's name: "train.py:88 in step"."""
    path, _, rest = text.partition(":")
    return f"{PurePath(path).name}:{rest}"
