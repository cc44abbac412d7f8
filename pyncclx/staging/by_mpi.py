"""Entries of the flight recorder for calls that MPI itself does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..events import longest_nbytes
from ..recording.layout import ANY, MESSAGE
from ..team.state import state_of

if TYPE_CHECKING:
    from ..team.base import Base


def is_message(operation: str) -> bool:
    """Return whether a method sends or receives, and is no collective."""
    return "send" in operation.lower() or "recv" in operation.lower()


@contextmanager
def recorded_by_mpi(comm: Base, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Record a call that MPI does in the block, and the end of a blocking one."""
    calls = state_of(comm).calls(comm)
    if calls is None:
        yield
    elif is_message(operation):
        peer, tag = (_argument(operation, names, args, kwargs) for names in (("dest", "source"), ("tag", "sendtag")))
        entry = calls.one(operation, MESSAGE, peer=peer, tag=tag, nbytes=longest_nbytes([*args, *kwargs.values()]))
        yield
        calls.end(entry)
    else:
        begun = calls.begin(operation)
        begun.of_host_arrays(operation)
        yield
        begun.end()


def _argument(operation: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the argument with one of these names, or else MPI's default.

    The default is tag 0 for sends, and any peer or tag otherwise.
    """
    for name in names:
        position = _positions(operation).get(name)
        if name in kwargs:
            return kwargs[name]
        if position is not None and position < len(args):
            return args[position]
    return 0 if "tag" in names and "send" in operation.lower() else ANY


@functools.cache
def _positions(operation: str) -> dict[str, int]:
    """Return the positions of a method's parameters, without `self`."""
    names = tuple(inspect.signature(getattr(MPI.Comm, operation)).parameters)[1:]
    return {name: position for position, name in enumerate(names)}
