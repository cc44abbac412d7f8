"""Verdict on a job: a cause, a sentence, and its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cause.

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
    ranks: tuple[int, ...] = ()
    sentence: str
    evidence: tuple[str, ...] = field(default=())


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
