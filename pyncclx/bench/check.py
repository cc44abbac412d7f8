"""Count the elements of an operation's result that are wrong, on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from .. import backends
from .cases import Case
from .peers import Peer
from .timing import Work


def wrong(library: Peer, case: Case, call: Work, in_place: bool) -> int:
    """Count elements of a library's result that are wrong. Collective.

    Ours must have the expected bits, and those of rank 0 where all ranks have the same result. A peer's may differ by
    rounding, for it may fold in another order, or round less often.
    """
    _run(library, case, call, in_place)
    target = library.target(case, in_place)
    bad = 0 if target is None else int(_differs(library, case, target).sum())
    if library.exact and case.same_everywhere:
        mine = target if isinstance(target, np.ndarray) else target.get()
        first = mine.copy()
        MPI.Comm.Bcast(case.comm, first.view(np.uint8))
        bad += int((mine.view(case.elements.bits) != first.view(case.elements.bits)).sum())
    return int(MPI.Comm.allreduce(case.comm, bad))


def _run(library: Peer, case: Case, call: Work, in_place: bool) -> None:
    case.fill(in_place)
    backends.select().synchronize()
    MPI.Comm.Barrier(case.comm)  # one-sided operations do not wait until the target has filled its buffer
    with library.queue:
        call()
        library.queue.synchronize()
    case.comm.synchronize()


def _differs(library: Peer, case: Case, target: Any) -> Any:
    elements, expected = case.elements, case.expected()
    if library.exact or not (case.reduces and elements.precision):
        return target.view(elements.bits) != expected.view(elements.bits)
    values, wanted = (elements.decode(array).astype(np.float64) for array in (target, expected))
    return ~(abs(values - wanted) <= case.size * elements.precision * abs(wanted))  # NaN is wrong, too
