"""One-sided operations on host targets, with host copies of device arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import events
from ..team.streams import Caller
from .arguments import Argument, GivenCall
from .completion import copy_back_on_completion
from .copies import Copy, copy_back, copy_in
from .stage import replace

_ORIGIN = Argument("origin", 0, False)
_RESULT = Argument("result", 1, True)
_FETCH = (_ORIGIN, _RESULT)

#: The buffers of the methods of `Win`, and the position of their `target_rank`.
ACCESSES: dict[str, tuple[tuple[Argument, ...], int]] = {
    **dict.fromkeys(("Put", "Rput", "Accumulate", "Raccumulate"), ((_ORIGIN,), 1)),
    **dict.fromkeys(("Get", "Rget"), ((Argument("origin", 0, True),), 1)),
    **dict.fromkeys(("Get_accumulate", "Rget_accumulate", "Fetch_and_op"), (_FETCH, 2)),
    "Compare_and_swap": ((_ORIGIN, Argument("compare", 1, False), Argument("result", 2, True)), 3),
}


class Origins:
    """Host copies of a window's operations, kept until MPI completes the operations."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller  # chooses streams
        self._open: list[tuple[int, list[Copy]]] = []  # target rank and copies

    def stage(self, given: GivenCall, call: Callable[..., Any], found: list[Argument]) -> Any:
        """Call mpi4py's method with host copies of the device arrays `found`."""
        began, operation = events.now() if events.listeners else None, given.operation.removeprefix("Win.")
        copies, given = replace(given, found, computing=given.computes, caller=self._caller)
        copy_in(copies)
        result = given.run(call)
        rank = given.value(Argument("target_rank", ACCESSES[operation][1], False))
        if result is None:
            self._open.append((rank, copies))
        else:
            result = copy_back_on_completion(result, copies)
        if began is not None:
            events.emit(operation, events.STAGED, max(copy.nbytes for copy in copies), began, peer=rank)
        return result

    def copy_back(self, rank: int | None = None) -> None:
        """Copy results of completed operations with a rank, or with all, to the device."""
        complete = [entry for entry in self._open if rank in (None, entry[0])]
        self._open = [] if rank is None else [entry for entry in self._open if entry[0] != rank]
        for _, copies in complete:
            copy_back(copies)
