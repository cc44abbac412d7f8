"""Base class of all timed libraries; pyncclx, and mpi4py on host buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..cases import Case
from ..memory import Pinned
from ..timing import Queue, queue_of

Call = Callable[[], Any]


class Peer:
    """A library to time, on the ranks of a communicator.

    A peer has a method for each kind of case that it supports, named by the kind. The method takes the case and whether
    it is in place, and returns the call.

    Attributes
    ----------
    queue : Queue
        Queue of its calls.
    about : str
        Name and version.
    exact : bool
        Whether it folds in the expected order, so that its results are compared bit by bit.
    capturable : bool
        Whether CUDA graphs can capture its calls; otherwise they are timed eagerly.
    in_place_only, out_of_place_only : set of str
        Kinds that it supports in one form only.
    """

    queue: Queue
    about: str
    exact = False
    capturable = True
    in_place_only: frozenset[str] = frozenset()
    out_of_place_only: frozenset[str] = frozenset()

    def adopt(self, case: Case) -> Case:
        """Return the case in the memory that the peer needs (collective)."""
        return case

    def call(self, case: Case, in_place: bool) -> Call | None:
        """Return the peer's call for a case; None if it does not support it."""
        if case.kind in (self.out_of_place_only if in_place else self.in_place_only):
            return None
        make: Callable[[Case, bool], Call | None] | None = getattr(self, case.kind, None)
        return make(case, in_place) if make else None

    def target(self, case: Case, in_place: bool) -> Any:
        """Return the array that contains this rank's result; None if it has no result."""
        return case.target(in_place)

    def close(self) -> None:
        """Release the peer's resources (collective)."""


class Ours(Peer):
    """pyncclx itself."""

    about, exact = "pyncclx", True

    def __init__(self, comm: Any) -> None:
        self.queue = queue_of(comm)

    def call(self, case: Case, in_place: bool) -> Call:
        return case.call(in_place)


class Staged(Peer):
    """mpi4py's own operations on pinned copies.

    This is what programs do without a CUDA-aware MPI. Graphs cannot capture it, and reductions support only MPI's
    types.
    """

    capturable = False

    def __init__(self, comm: Any) -> None:
        self.comm, self.queue, self._memory = comm, Queue(), Pinned(comm)
        library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
        self.about = f"{library}, staged through host memory"

    def call(self, case: Case, in_place: bool) -> Call | None:
        if case.reduces and (case.options.op == "avg" or case.elements.row.mpi is None):
            return None
        host = case.twin(self._memory)
        operation, arguments = getattr(MPI.Intracomm, case.mpi_method or case.method), host.arguments(in_place)
        source, target = case.source(in_place), case.target(in_place)
        host_source, host_target = host.source(in_place), host.target(in_place)

        def staged() -> None:
            if source is not None:
                copy(host_source, source)
            operation(self.comm, *arguments)
            if target is not None:
                copy(target, host_target)

        return staged


def copy(to: Any, array: Any) -> None:
    """Copy to the host or to the device, and wait for the copy."""
    if isinstance(array, np.ndarray) and isinstance(to, np.ndarray):
        to[...] = array
    elif isinstance(to, np.ndarray):
        array.get(out=to)
    else:
        to.set(array)
        to.device.synchronize()


def own_block(case: Case, in_place: bool) -> Any:
    """Return the part of a buffer for this rank's result in NCCL's form.

    An in-place reduce-scatter of NCCL leaves each block where it is; in other cases the result is `Case.target`.
    """
    if in_place and case.kind == "reduce_scatter":
        return case.part(case.send, case.rank)
    return case.target(in_place)
