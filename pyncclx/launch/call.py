"""`Call`: a checked call on device arrays, with all that its launch needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Function
from ..memory.called import describe, pack_call
from ..team.plans import Plan
from ..team.team import Team
from .choice import Choice

# Returns the kernel of a name and template arguments, ready to launch. Collective at the first use.
Load = Callable[[Any, Team, str, tuple[str, ...]], Function]


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call on device arrays with checked arguments: all that its launch needs.

    The function of every operation returns one, or None for host arrays, which mpi4py handles.
    """

    operation: str  # the method's name
    choose: Callable[..., Choice]  # the operation's function from a layout and `sized` to a choice
    sized: tuple[Any, ...]  # bytes of the message, and what else the choice depends on
    template: tuple[str, ...] = ()  # template arguments of the kernel: element type and operator, if any
    arguments: bytes  # the kernel's arguments after the Team
    buffers: tuple[Buffer, ...]  # the send buffer first, the receive buffer last
    signature: tuple[Any, ...]  # values that kernels compare, since they must be equal on all ranks
    before: Callable[[Team, Any], None] | None = None  # enqueues on a stream what runs before the kernel
    after: Callable[[Team, Plan, Any], None] | None = None  # enqueues on a stream what runs after the kernel
    is_again: bool = False  # `before` and `after` hold no arrays and serve equal calls too
    beside: tuple[str, ...] = ()  # other kernels of the same file that `before` and `after` launch
    root: int | None = None
    of_mpi: bool = True  # MPI can do it on host copies, except with operators and types that it lacks
    load: Load | None = None  # returns the kernel if its source is not in a file of `sources.FILES`

    @property
    def may_be_known(self) -> bool:
        """Whether the launch can be cached and reused for a call with equal arguments."""
        return self.is_again or (self.before is None and self.after is None)

    @property
    def called(self) -> bytes:
        """The packed operation and signature that kernels compare."""
        return pack_call(describe(self.operation, self.signature))


def is_in_place(spec: Any) -> bool:
    """Return whether a send buffer is MPI.IN_PLACE; in mpi4py None means this too."""
    return spec is None or spec is MPI.IN_PLACE
