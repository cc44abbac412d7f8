"""What every peer has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ..cases import Case
from ..timing import Queue

Call = Callable[[], Any]


class Peer(ABC):
    """Another library, with the ranks of a communicator.

    For each kind of case that it has, a peer has a method of that name, which takes the case and whether it is in
    place, and gives the call, or None if it has no such form.

    Attributes
    ----------
    queue : Queue
        Where its calls run.
    about : str
        Name and version.
    capturable : bool
        Whether its calls can be captured in CUDA graphs; if not, they are always timed without.
    """

    queue: Queue
    about: str
    capturable = True

    def adopt(self, case: Case) -> Case:
        """The case in the memory that the peer wants. Collective."""
        return case

    def call(self, case: Case, in_place: bool) -> Call | None:
        """The peer's call for a case; None if it has none."""
        make: Callable[[Case, bool], Call | None] | None = getattr(self, case.kind, None)
        return make(case, in_place) if make else None

    def target(self, case: Case, in_place: bool) -> Any:
        """Where this rank's result stands; None if it gets none."""
        return case.target(in_place)

    @abstractmethod
    def close(self) -> None:
        """Leave in order. Collective."""


def own_block(case: Case, in_place: bool) -> Any:
    """As `Case.target`, but a reduce-scatter in place leaves each block where it is, as NCCL does."""
    if in_place and case.kind == "reduce_scatter":
        return case.part(case.send, case.rank)
    return case.target(in_place)
