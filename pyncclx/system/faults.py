"""Faults to inject into a run, parsed from PYNCCLX_FAULT."""

from __future__ import annotations

import math
from dataclasses import dataclass

ACTIONS = ("kill", "stop", "delay", "skip", "raise", "interrupt", "corrupt-header")
_TIMED = ("stop", "delay")  # actions that may have seconds after a colon
_BEFORE_THE_CALL = ("delay", "skip", "raise", "corrupt-header")  # actions impossible during the call
ACCEPTS = (
    "faults as 'rank=2,call=Allreduce,nth=5,do=kill', with ';' between several; do: kill, stop, stop:SECONDS, "
    "delay:SECONDS, skip, raise, interrupt or corrupt-header; after=SECONDS: so long after the call has begun"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes
    ----------
    rank : int or None
        Rank in MPI.COMM_WORLD; None: every rank.
    call : str
        Name of the method, such as "Allreduce" or "Wait".
    nth : int
        The fault happens at the n-th call of that method on the rank, counted from 1.
    do : str
        One of `ACTIONS`.
    seconds : float
        Length of a delay or stop; inf for a process that stays stopped.
    after_s : float
        Seconds from the beginning of the call to the fault; 0 for a fault before the call.
    """

    rank: int | None
    call: str
    nth: int = 1
    do: str = "kill"
    seconds: float = math.inf
    after_s: float = 0.0


def parse(text: str) -> tuple[Fault, ...]:
    """Return the faults that a text describes.

    Raises
    ------
    ValueError
        If the text is malformed.

    Examples
    --------
    >>> parse("rank=2,call=Allreduce,nth=5,do=delay:0.2")
    (Fault(rank=2, call='Allreduce', nth=5, do='delay', seconds=0.2, after_s=0.0),)
    """
    return tuple(_one(each) for each in text.split(";") if each.strip())


def _one(text: str) -> Fault:
    fields = dict(field.strip().partition("=")[::2] for field in text.split(","))
    do, _, seconds = fields.pop("do", "kill").partition(":")
    rank, call = fields.pop("rank", "*"), fields.pop("call", "")
    fault = Fault(
        rank=None if rank == "*" else int(rank),
        call=call,
        nth=int(fields.pop("nth", "1")),
        do=do,
        seconds=float(seconds) if seconds else math.inf,
        after_s=float(fields.pop("after", "0")),
    )
    wrong = fields or not call or do not in ACTIONS or fault.nth < 1 or not (0 <= fault.after_s < math.inf)
    timed_wrongly = (seconds and do not in _TIMED) or (do == "delay" and not seconds)
    if wrong or timed_wrongly or fault.seconds <= 0 or (fault.after_s and do in _BEFORE_THE_CALL):
        raise ValueError(text)
    return fault
