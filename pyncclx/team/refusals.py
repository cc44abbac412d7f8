"""Memory that a communicator cannot have. MPI does its calls then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import NotSupported

if TYPE_CHECKING:
    from .state import State

T = TypeVar("T")


def unless_refused(state: State, make: Callable[[], T], *, staging: bool) -> T:
    """Return what `make` returns. Collective at the first call.

    If `make` has raised NotSupported, and `staging` is true, later calls raise it without meeting the other ranks. The
    reason has not changed, MPI does the operations, and nonblocking ones must not wait.
    """
    if state.refusal is not None and staging:
        raise NotSupported(str(state.refusal))
    try:
        return make()
    except NotSupported as refusal:
        state.refusal = refusal
        raise
