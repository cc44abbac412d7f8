"""From arguments to a description, and from that to a call.

An operation's function checks its arguments and returns their description. `lowered_by` makes it return the call inside
a node. `over_nodes` makes the function for ranks on several nodes from the same description.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ..derived.calls import takes_derived
from ..errors import NotSupported
from ..nodes.program import SpanningCall
from ..team.base import IntraBase as Intracomm

_P = ParamSpec("_P")
_Given = TypeVar("_Given")  # description of checked arguments
_Call = TypeVar("_Call")


class _Describing(NamedTuple):
    """A function that describes calls, and the kinds of its buffers."""

    describe: Callable[..., Any]
    kinds: tuple[str, ...]
    at_root: str | None

    def lowered(self, lower: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        """Return the function that makes calls by a lowering."""
        describe = self.describe

        @functools.wraps(describe)
        def make(comm: Any, *args: Any, **options: Any) -> Any:
            given = describe(comm, *args, **options)
            return None if given is None else lower(comm, given)

        if not self.kinds:
            return make
        return takes_derived(make.__name__.capitalize(), *self.kinds, at_root=self.at_root)(make)


# By the function that makes the operation's calls inside a node.
_DESCRIBING: dict[Callable[..., Any], _Describing] = {}


def lowered_by(
    lower: Callable[[Intracomm, _Given], _Call], *kinds: str, at_root: str | None = None
) -> Callable[[Callable[_P, _Given | None]], Callable[_P, _Call | None]]:
    """Let a function that describes calls make those inside a node.

    It has the method's name and parameters, and returns None for host arrays, which mpi4py handles.

    Parameters
    ----------
    lower : callable
        ``lower(comm, description)`` returns the call.
    *kinds, at_root
        Parameters of `takes_derived`. Without kinds the operation takes no derived datatypes.
    """

    def decorate(describe: Callable[_P, _Given | None]) -> Callable[_P, _Call | None]:
        describing = _Describing(describe, kinds, at_root)
        make = describing.lowered(lower)
        _DESCRIBING[make] = describing
        return make

    return decorate


def over_nodes(
    make: Callable[..., Any], lower: Callable[[Intracomm, Any], SpanningCall]
) -> Callable[..., SpanningCall | None]:
    """Return the function that makes an operation's calls over nodes by a lowering.

    `make` makes the calls inside a node.
    """
    describing = _DESCRIBING[make]

    @functools.wraps(describing.describe)
    def describe(comm: Any, *args: Any, **options: Any) -> Any:
        given, algorithm = describing.describe(comm, *args, **options), options.get("algorithm")
        if given is not None and algorithm is not None:
            raise NotSupported(
                f"{make.__name__.capitalize()}: algorithm={algorithm!r} names a kernel inside one node, and the ranks "
                "are on several; leave it out"
            )
        return given

    return describing._replace(describe=describe).lowered(lower)
