"""Decorators that turn a check of arguments into functions that make calls.

An operation has one function that checks its arguments and describes them. `lowered_by` decorates this function, so
that it returns the `Call` inside a node. `over_nodes` returns a second function, which makes the `SpanningCall` for
ranks on several nodes from the same description.
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
    """A function that checks and describes arguments, and the kinds of its buffers."""

    describe: Callable[..., Any]
    kinds: tuple[str, ...]
    at_root: str | None

    def lowered(self, lower: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        """Return a function that describes the arguments and passes the result to `lower`."""
        describe = self.describe

        @functools.wraps(describe)
        def make(comm: Any, *args: Any, **options: Any) -> Any:
            given = describe(comm, *args, **options)
            return None if given is None else lower(comm, given)

        if not self.kinds:
            return make
        return takes_derived(make.__name__.capitalize(), *self.kinds, at_root=self.at_root)(make)


# The key is the function that makes the operation's calls inside a node.
_DESCRIBING: dict[Callable[..., Any], _Describing] = {}


def lowered_by(
    lower: Callable[[Intracomm, _Given], _Call], *kinds: str, at_root: str | None = None
) -> Callable[[Callable[_P, _Given | None]], Callable[_P, _Call | None]]:
    """Decorate a function that describes arguments, so that it returns a `Call`.

    The function to decorate has the name and parameters of the communicator's method. It returns a description of the
    checked arguments, or None for host arrays, which mpi4py handles. After decoration it returns the `Call` for ranks
    inside one node, or None.

    Parameters
    ----------
    lower : callable
        ``lower(comm, description)`` returns the `Call`.
    *kinds, at_root
        Parameters of `takes_derived`. Without kinds the operation accepts no derived datatypes.
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
    """Return a function that checks arguments and returns the `SpanningCall`.

    It is the counterpart, for ranks on several nodes, of the function that `lowered_by` has decorated.

    Parameters
    ----------
    make : callable
        The function decorated by `lowered_by`. The result checks and describes arguments in the same way.
    lower : callable
        ``lower(comm, description)`` returns the `SpanningCall`.
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
