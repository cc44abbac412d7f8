"""A call on device arrays whose arguments are checked."""

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
    """A call on device arrays whose arguments are checked: all that its launch needs.

    Every operation is a function that returns one; it returns None for host arrays, which mpi4py handles.
    """

    operation: str  # the method's name
    choose: Callable[..., Choice]  # of the operation: returns its choice for a layout and `sized`
    sized: tuple[Any, ...]  # bytes of the message, and what else the choice depends on
    template: tuple[str, ...] = ()  # of the kernel: element type and operator, if it has any
    arguments: bytes  # the kernel's, after the Team
    buffers: tuple[Buffer, ...]  # the send buffer first, the receive buffer last
    signature: tuple[Any, ...]  # what must be equal on all ranks, which kernels compare
    before: Callable[[Team, Any], None] | None = None  # enqueues on a stream what comes before the kernel
    after: Callable[[Team, Plan, Any], None] | None = None  # and what follows it
    is_again: bool = False  # `before` and `after` do the same for an equal call, and hold no arrays
    beside: tuple[str, ...] = ()  # other kernels of the same file that those two launch
    root: int | None = None
    of_mpi: bool = True  # MPI can do it on host copies, but for operators and types that it does not have
    load: Load | None = None  # returns the kernel if its source is not in a file of `sources.FILES`

    @property
    def may_be_known(self) -> bool:
        """Whether an equal call does just the same."""
        return self.is_again or (self.before is None and self.after is None)

    @property
    def called(self) -> bytes:
        """The operation and its signature, as kernels take them."""
        return pack_call(describe(self.operation, self.signature))


def is_in_place(spec: Any) -> bool:
    """Return whether a send buffer is MPI.IN_PLACE, or None, which means the same to mpi4py."""
    return spec is None or spec is MPI.IN_PLACE
