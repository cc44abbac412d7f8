"""The base of all libraries that are timed, and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..cases import Case
from ..timing import Queue, queue_of

Call = Callable[[], Any]


class Peer:
    """A library, with the ranks of a communicator.

    A peer has a method for each kind of case that it can do, by the kind's name. It takes the case and whether it is in
    place, and returns the call.

    Attributes
    ----------
    queue : Queue
        Where its calls run.
    about : str
        Name and version.
    exact : bool
        Whether it folds in the order of what is expected, so that its results are compared bit by bit.
    capturable : bool
        Whether CUDA graphs can capture its calls; else they are timed eagerly.
    in_place_only, out_of_place_only : set of str
        Kinds that it can do in one form.
    """

    queue: Queue
    about: str
    exact = False
    capturable = True
    in_place_only: frozenset[str] = frozenset()
    out_of_place_only: frozenset[str] = frozenset()

    def adopt(self, case: Case) -> Case:
        """Move a case to the memory that the peer needs. Collective."""
        return case

    def call(self, case: Case, in_place: bool) -> Call | None:
        """Make the peer's call for a case; None if it cannot do that."""
        if case.kind in (self.out_of_place_only if in_place else self.in_place_only):
            return None
        make: Callable[[Case, bool], Call | None] | None = getattr(self, case.kind, None)
        return make(case, in_place) if make else None

    def target(self, case: Case, in_place: bool) -> Any:
        """The part of a buffer that holds this rank's result; None if it gets none."""
        return case.target(in_place)

    def close(self) -> None:
        """Release what the peer holds. Collective."""


class Ours(Peer):
    """pyncclx itself."""

    about, exact = "pyncclx", True

    def __init__(self, comm: Any) -> None:
        self.queue = queue_of(comm)

    def call(self, case: Case, in_place: bool) -> Call:
        return case.call(in_place)


def own_block(case: Case, in_place: bool) -> Any:
    """As `Case.target`, but an in-place reduce-scatter leaves each block where it is, as NCCL's does."""
    if in_place and case.kind == "reduce_scatter":
        return case.part(case.send, case.rank)
    return case.target(in_place)
