"""Base class of all timed libraries, and pyncclx as one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..cases import Case
from ..timing import Queue, queue_of

Call = Callable[[], Any]


class Peer:
    """Library, with the ranks of a communicator.

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
        Whether CUDA graphs can capture its calls; if not, they are timed eagerly.
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
        """Return the part of a buffer for this rank's result; None if it has none."""
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


def own_block(case: Case, in_place: bool) -> Any:
    """Return the part of a buffer for this rank's result in NCCL's form.

    An in-place reduce-scatter of NCCL leaves each block in its place; otherwise this is `Case.target`.
    """
    if in_place and case.kind == "reduce_scatter":
        return case.part(case.send, case.rank)
    return case.target(in_place)
