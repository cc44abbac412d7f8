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
    """A call over nodes: everything needed to compose its program.

    Inside a node, `launch.Call` plays this part.

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
        On all ranks: there is nothing to do.
    before, after : callable, optional
        Enqueue work before and after the program, such as the packing of a derived datatype.
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
        """Whether the program can be cached and enqueued again for an equal call."""
        return self.is_again or (self.before is None and self.after is None)
