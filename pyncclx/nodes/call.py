"""A call over nodes whose arguments are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arrays.buffers import Buffer
from ..team.plans import Plan
from ..team.team import Team
from .composition import Composition


@dataclass(slots=True, kw_only=True, eq=False)
class SpanningCall:
    """A call over nodes: all that it takes to make its program. `launch.Call` is that of a call inside a node.

    Attributes
    ----------
    operation : str
        The method's name.
    compose : callable
        Adds the steps to a `Composition`. All ranks add steps of the same kinds in the same order.
    buffers : tuple of Buffer
    signature : tuple
        What must be equal on all ranks; PYNCCLX_CHECK=1 compares it.
    empty : bool
        On all ranks: nothing has to be done.
    before, after : callable, optional
        Enqueue on a stream what comes before and after the program, such as the packing of a derived datatype.
    is_again : bool
        Whether `before` and `after` do the same for every equal call.
    """

    operation: str
    compose: Callable[[Composition], None]
    buffers: tuple[Buffer, ...]
    signature: tuple[Any, ...]
    empty: bool = False
    before: Callable[[Team, Any], None] | None = None
    after: Callable[[Team, Plan | None, Any], None] | None = None
    is_again: bool = False

    @property
    def may_be_known(self) -> bool:
        """Whether its program does for an equal call what has to be done."""
        return self.is_again or (self.before is None and self.after is None)
