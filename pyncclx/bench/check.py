"""Count the elements of an operation's result that are wrong, on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from .cases import Case
from .timing import Queue, Work


def wrong(case: Case, queue: Queue, call: Work, in_place: bool) -> int:
    """Count elements of ours that differ by a bit from the expected ones, or from rank 0's. Collective."""
    _run(case, queue, call, in_place)
    target = case.target(in_place)
    bad = 0 if target is None else int((_bits(case, target) != _bits(case, case.expected())).sum())
    if case.same_everywhere:
        mine = target if isinstance(target, np.ndarray) else target.get()
        first = mine.copy()
        MPI.Comm.Bcast(case.comm, first.view(np.uint8))
        bad += int((mine.view(case.elements.bits) != first.view(case.elements.bits)).sum())
    return int(MPI.Comm.allreduce(case.comm, bad))


def peer_wrong(case: Case, queue: Queue, call: Work, in_place: bool, target: Any) -> int:
    """Count elements of a peer's result that differ by more than rounding, for its order may differ. Collective."""
    _run(case, queue, call, in_place)
    bad = 0
    if target is not None and not (case.reduces and case.elements.precision):
        bad = int((_bits(case, target) != _bits(case, case.expected())).sum())
    elif target is not None:
        values, expected = (case.elements.decode(array).astype(np.float64) for array in (target, case.expected()))
        bound = case.size * case.elements.precision * abs(expected)
        bad = int((~(abs(values - expected) <= bound)).sum())  # NaN is wrong, too
    return int(MPI.Comm.allreduce(case.comm, bad))


def _run(case: Case, queue: Queue, call: Work, in_place: bool) -> None:
    case.fill(in_place)
    case.comm.team.device.synchronize()
    MPI.Comm.Barrier(case.comm)  # one-sided operations do not wait until the target has filled its buffer
    with queue:
        call()
        queue.synchronize()
    case.comm.synchronize()


def _bits(case: Case, array: Any) -> Any:
    return array.view(case.elements.bits)
