"""Count the wrong elements of an operation's result, on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ... import backends
from .cases import Case
from .peers import Peer
from .timing import Work


def wrong(library: Peer, case: Case, call: Work, in_place: bool) -> int:
    """Count the wrong elements of a library's result (collective).

    pyncclx's result must have the expected bits; where all ranks have the same result, it must have the bits of rank 0.
    A peer's result may differ by rounding, because it may fold in another order, or round less often.
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
    # One-sided operations do not wait until the target has filled its buffer.
    MPI.Comm.Barrier(case.comm)
    with library.queue:
        call()
        library.queue.synchronize()
    case.comm.synchronize()


def _differs(library: Peer, case: Case, target: Any) -> Any:
    elements, expected = case.elements, case.expected()
    if library.exact or not (case.reduces and elements.precision):
        return target.view(elements.bits) != expected.view(elements.bits)
    values, wanted = (elements.decode(array).astype(np.float64) for array in (target, expected))
    # NaN is wrong, too.
    return ~(abs(values - wanted) <= case.size * elements.precision * abs(wanted))
