"""Buffer arguments of MPI's methods, and which of them MPI may write to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from mpi4py import MPI

from ..arrays.places import host_arrays, where
from ..errors import NotSupported
from ..events import longest_nbytes
from ..operations import COLLECTIVES, forms
from ..operations import PAIR as PAIR_NAMES
from ..recording.layout import ANY, MESSAGE
from ..team.base import Base
from ..team.state import state_of


class Argument(NamedTuple):
    """A buffer argument of a method."""

    name: str
    position: int
    written: bool


_SEND = (Argument("buf", 0, False),)
_RECV = (Argument("buf", 0, True),)
PAIR = (Argument("sendbuf", 0, False), Argument("recvbuf", 1, True))
_EXCHANGE = (Argument("sendbuf", 0, False), Argument("recvbuf", 3, True))


_BUFFERS = {("buf",): _RECV, PAIR_NAMES: PAIR}


def _forms(*names: str) -> Iterator[str]:
    return chain.from_iterable(map(forms, names))


#: Arguments by the method's name, without barriers and the lower-case methods for Python objects.
OPERATIONS: dict[str, tuple[Argument, ...]] = {
    **{form: _BUFFERS[row.buffers] for row in COLLECTIVES.values() if row.buffers for form in row.forms},
    **dict.fromkeys(_forms("Send", "Bsend", "Ssend", "Rsend"), _SEND),
    **dict.fromkeys(_forms("Recv"), _RECV),
    **dict.fromkeys(("Sendrecv", "Isendrecv"), _EXCHANGE),
    **dict.fromkeys(("Sendrecv_replace", "Isendrecv_replace"), _RECV),
    "Psend_init": _SEND,
    "Precv_init": _RECV,
}

#: The position of `op` in methods that compute with elements, including one-sided ones.
OP_POSITIONS: dict[str, int] = {
    **{form: row.op for row in COLLECTIVES.values() if row.op is not None for form in row.forms},
    **dict.fromkeys(("Win.Accumulate", "Win.Raccumulate"), 3),
    **dict.fromkeys(("Win.Get_accumulate", "Win.Rget_accumulate", "Win.Fetch_and_op"), 4),
}


def device_buffers(
    operation: str, buffers: tuple[Argument, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Argument]:
    """Return the buffer arguments of a call that are device arrays.

    Raises
    ------
    NotSupported
        If an argument has absolute addresses in device memory. Their arrays are unknown and cannot be copied.
    """
    found = [a for a in buffers if where(argument(a, args, kwargs)) == "device"]
    absolute = [a for a in found if _is_bottom(argument(a, args, kwargs))]
    if absolute and not host_arrays():
        text = "is MPI.BOTTOM with absolute addresses on the device, and has no kernel here; pass the array itself"
        raise NotSupported(f"{operation}: {absolute[0].name} {text}")
    return [a for a in found if a not in absolute]


def _is_bottom(spec: Any) -> bool:
    return isinstance(spec, (list, tuple)) and spec[0] is MPI.BOTTOM


def argument(which: Argument, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an argument of a call; None if it was omitted."""
    return args[which.position] if which.position < len(args) else kwargs.get(which.name)


def computes(operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call reduces elements with one of MPI's own operators.

    False for user-defined operators, which may interpret the bytes of the elements in any way, and for MPI.REPLACE and
    MPI.NO_OP. True if the operator was omitted: the default is MPI.SUM.
    """
    if operation not in OP_POSITIONS:
        return False
    op = argument(Argument("op", OP_POSITIONS[operation], False), args, kwargs)
    return op is None or (isinstance(op, MPI.Op) and op.is_predefined and op not in (MPI.REPLACE, MPI.NO_OP))


def is_nonblocking(operation: str) -> bool:
    """Return whether the method returns a request for one operation."""
    return operation[0] == "I" and operation[1].islower()


def is_persistent(operation: str) -> bool:
    """Return whether the method returns a request that can be started."""
    return operation.endswith("_init")


def is_message(operation: str) -> bool:
    """Return whether a method sends or receives a message."""
    return "send" in operation.lower() or "recv" in operation.lower()


@contextmanager
def recorded_by_mpi(comm: Base, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Record a call that MPI runs in the block, and its end if it is blocking."""
    calls = state_of(comm).calls(comm)
    if calls is None:
        yield
    elif is_message(operation):
        peer, tag = (_peer_or_tag(operation, names, args, kwargs) for names in (("dest", "source"), ("tag", "sendtag")))
        entry = calls.one(operation, MESSAGE, peer=peer, tag=tag, nbytes=longest_nbytes([*args, *kwargs.values()]))
        yield
        calls.end(entry)
    else:
        begun = calls.begin(operation)
        begun.of_host_arrays(operation)
        yield
        begun.end()


def _peer_or_tag(operation: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the argument with one of these names, or else MPI's default.

    The default is tag 0 for sends, otherwise a wildcard.
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
