"""Collectives with derived datatypes: the operation works on packed copies, with a kernel before and one after."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mpi4py import MPI

from .. import backends
from ..errors import DerivedDatatype
from ..launch.call import Call, is_in_place
from ..team.plans import Plan
from ..team.team import Team
from .packing import PACK, UNPACK, packing_of
from .typed import Typed, aligned, resolve_blocks, resolve_typed

ONE, BLOCKS, VECTOR = "one", "blocks", "vector"  # a message, one block for each rank, blocks with counts and displs
_Make = TypeVar("_Make", bound=Callable[..., "Call | None"])


@dataclass(frozen=True, slots=True)
class Packed:
    """An argument that has a packed copy."""

    typed: Typed
    address: int  # of the copy


@dataclass(frozen=True, slots=True)
class _Roles:
    """What an operation does with its buffer arguments on this rank."""

    kinds: dict[str, str]  # of those that it uses, by name: ONE, BLOCKS or VECTOR
    read: set[str]
    written: set[str]


def takes_derived(operation: str, *kinds: str, at_root: str | None = None) -> Callable[[_Make], _Make]:
    """Let the function that makes an operation's call take derived datatypes: it is given bytes then.

    Parameters
    ----------
    operation : str
    *kinds : {ONE, BLOCKS, VECTOR}
        Of its first arguments after the communicator.
    at_root : str, optional
        The argument that matters at root only.
    """

    def decorate(make: _Make) -> _Make:
        names = list(inspect.signature(make).parameters)[1:]
        kind_of = dict(zip(names, kinds, strict=False))

        @functools.wraps(make)
        def native(comm: Any, *args: Any, **kwargs: Any) -> Call | None:
            try:
                return make(comm, *args, **kwargs)
            except DerivedDatatype:
                given = {**dict(zip(names, args, strict=False)), **kwargs}
            is_root = comm.rank == given.get("root", 0)
            used = {
                name: kind
                for name, kind in kind_of.items()
                if (name != at_root or is_root) and not is_in_place(given.get(name))
            }
            roles = _bcast_roles(used, is_root) if operation == "Bcast" else _roles(used, at_root, is_root)
            return _in_bytes(comm, operation, make, given, roles)

        return native  # type: ignore[return-value]

    return decorate


def _bcast_roles(used: dict[str, str], is_root: bool) -> _Roles:
    return _Roles(used, {"buf"}, set()) if is_root else _Roles(used, set(), {"buf"})


def _roles(used: dict[str, str], at_root: str | None, is_root: bool) -> _Roles:
    in_place = "sendbuf" not in used and (at_root != "sendbuf" or is_root)
    return _Roles(used, {"recvbuf" if in_place else "sendbuf"}, {"recvbuf"})


def _in_bytes(
    comm: Any, operation: str, make: Callable[..., Call | None], given: dict[str, Any], roles: _Roles
) -> Call | None:
    """The call with each buffer argument as bytes, packed where it is not contiguous."""
    typed = {
        name: _resolve(given[name], f"{operation}: {name}", kind, comm.size, writable=name in roles.written)
        for name, kind in roles.kinds.items()
    }
    packed = reserve(comm, {name: each for name, each in typed.items() if not each.is_contiguous})
    bytes_of = {name: _spec(each, packed.get(name), roles.kinds[name]) for name, each in typed.items()}
    call = make(comm, **{**given, **bytes_of})
    before = [each for name, each in packed.items() if name in roles.read]
    after = [each for name, each in packed.items() if name in roles.written]
    return None if call is None else with_copies(call, before, after)


def _resolve(spec: Any, label: str, kind: str, size: int, *, writable: bool) -> Typed:
    device = backends.select()
    if kind == VECTOR:
        return resolve_blocks(spec, label, size, writable=writable, device=device)
    return resolve_typed(spec, label, writable=writable, device=device, blocks=size if kind == BLOCKS else 1)


def reserve(comm: Any, typed: dict[str, Typed]) -> dict[str, Packed]:
    """Packed memory for some arguments. Collective if any needs some, at the first use.

    It lasts as long as the communicator, so graphs may use it; calls on a communicator follow each other.
    """
    needed = {name: each for name, each in typed.items() if each.nbytes}
    if not needed:
        return {}
    address = comm.team.scratch.address(sum(aligned(each.nbytes) for each in needed.values()))
    packed = {}
    for name, each in needed.items():
        packed[name] = Packed(each, address)
        address += aligned(each.nbytes)
    return packed


def with_copies(call: Call, before: list[Packed], after: list[Packed]) -> Call:
    """A call that packs some arguments before its kernel, and unpacks some after it."""
    call_after = call.after

    def pack(team: Team, stream: Any) -> None:
        for each in before:
            _move(PACK, each, team, stream)

    def unpack(team: Team, plan: Plan, stream: Any) -> None:
        if call_after is not None:
            call_after(team, plan, stream)
        for each in after:
            _move(UNPACK, each, team, stream)

    return replace(call, before=pack if before else None, after=unpack if after else call_after)


def _move(kernel: str, packed: Packed, team: Team, stream: Any) -> None:
    parts, memory = packed.typed.parts, packed.typed.buffer.address
    for launch in packing_of(team.device).launches(kernel, parts, memory, packed.address, stream):
        team.order.enqueue(*launch, stream)


def _spec(typed: Typed, packed: Packed | None, kind: str) -> Any:
    """A buffer argument of bytes, in packed memory or where the array is."""
    if kind != VECTOR:
        part = typed.parts[0]
        return typed.at(packed.address if packed else typed.buffer.address + part.offset, part.nbytes)
    counts = [part.nbytes for part in typed.parts]
    if packed:
        return [typed.at(packed.address, typed.nbytes), (counts, [part.start for part in typed.parts]), MPI.BYTE]
    return [typed.buffer, (counts, [part.offset for part in typed.parts]), MPI.BYTE]
