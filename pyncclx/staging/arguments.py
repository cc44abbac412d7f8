"""Buffer arguments of MPI's methods, and which of them MPI may write to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
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


class GivenCall(NamedTuple):
    """A call of mpi4py's method.

    Attributes
    ----------
    operation : str
        The name of the method; for a method of a window, for example "Win.Put".
    args, kwargs
        Its arguments.
    """

    operation: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def value(self, which: Argument) -> Any:
        """Return an argument; None if it was omitted."""
        args = self.args
        return args[which.position] if which.position < len(args) else self.kwargs.get(which.name)

    def with_value(self, which: Argument, value: Any) -> GivenCall:
        """Return a copy of the call with another value of a passed argument."""
        if which.position < len(self.args):
            return self._replace(args=(*self.args[: which.position], value, *self.args[which.position + 1 :]))
        return self._replace(kwargs={**self.kwargs, which.name: value})

    def run(self, method: Callable[..., Any]) -> Any:
        """Call a method with the arguments, and return its result."""
        return method(*self.args, **self.kwargs)

    @property
    def nbytes(self) -> int:
        """Bytes of the longest array among the arguments."""
        return longest_nbytes([*self.args, *self.kwargs.values()])

    def device_buffers(self, buffers: tuple[Argument, ...]) -> list[Argument]:
        """Return the buffer arguments that are device arrays.

        Raises
        ------
        NotSupported
            If an argument has absolute addresses in device memory, because the arrays there are unknown.
        """
        found = [each for each in buffers if where(self.value(each)) == "device"]
        if not found:
            return found
        specs = {each: self.value(each) for each in found}
        absolute = [each for each, spec in specs.items() if isinstance(spec, (list, tuple)) and spec[0] is MPI.BOTTOM]
        if absolute and not host_arrays():
            text = "is MPI.BOTTOM with absolute addresses on the device, and has no kernel here; pass the array itself"
            raise NotSupported(f"{self.operation}: {absolute[0].name} {text}")
        return [each for each in found if each not in absolute]

    @property
    def computes(self) -> bool:
        """Whether the call reduces elements with one of MPI's own operators.

        False for user-defined operators, which may interpret the bytes of the elements in any way, and for MPI.REPLACE
        and MPI.NO_OP. True if the operator was omitted: the default is MPI.SUM.
        """
        if self.operation not in OP_POSITIONS:
            return False
        op = self.value(Argument("op", OP_POSITIONS[self.operation], False))
        return op is None or (isinstance(op, MPI.Op) and op.is_predefined and op not in (MPI.REPLACE, MPI.NO_OP))


@functools.cache
def parameters(name: str) -> tuple[str, ...]:
    """Return the names of the parameters of mpi4py's method, without `self`.

    Return an empty tuple if mpi4py has no such method.
    """
    method = getattr(MPI.Cartcomm, name, None)
    return () if method is None else tuple(inspect.signature(method).parameters)[1:]


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
def recorded_by_mpi(comm: Base, given: GivenCall) -> Iterator[None]:
    """Record a call that MPI runs in the block, and its end if it is blocking."""
    calls, operation = state_of(comm).calls(comm), given.operation
    if calls is None:
        yield
    elif is_message(operation):
        peer, tag = (_peer_or_tag(given, names) for names in (("dest", "source"), ("tag", "sendtag")))
        entry = calls.one(operation, MESSAGE, peer=peer, tag=tag, nbytes=given.nbytes)
        yield
        calls.end(entry)
    else:
        begun = calls.begin(operation)
        begun.of_host_arrays(operation)
        yield
        begun.end()


def _peer_or_tag(given: GivenCall, names: tuple[str, ...]) -> Any:
    """Return the argument with one of these names, or else MPI's default.

    The default is tag 0 for sends, otherwise a wildcard.
    """
    passed = {**dict(zip(parameters(given.operation), given.args, strict=False)), **given.kwargs}
    default = 0 if "tag" in names and "send" in given.operation.lower() else ANY
    return next((passed[name] for name in names if name in passed), default)
