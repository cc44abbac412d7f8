"""Collectives with derived datatypes: the operation works on packed copies, with a kernel before and one after."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

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


class Packed(NamedTuple):
    """An argument that has a packed copy."""

    typed: Typed
    address: int  # of the copy


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

        @functools.wraps(make)
        def native(comm: Any, *args: Any, **kwargs: Any) -> Call | None:
            try:
                return make(comm, *args, **kwargs)
            except DerivedDatatype:
                given = {**dict(zip(names, args, strict=False)), **kwargs}
            is_root = comm.rank == given.get("root", 0)
            named = dict(zip(names, kinds, strict=False))
            used = {
                name: kind
                for name, kind in named.items()
                if (name != at_root or is_root) and not is_in_place(given.get(name))
            }
            if operation == "Bcast":
                read, written = ({"buf"}, set()) if is_root else (set(), {"buf"})
            else:
                in_place = "sendbuf" not in used and (at_root != "sendbuf" or is_root)
                read, written = {"recvbuf" if in_place else "sendbuf"}, {"recvbuf"}
            return _in_bytes(comm, operation, make, given, used, read, written)

        return native  # type: ignore[return-value]

    return decorate


def _in_bytes(
    comm: Any,
    operation: str,
    make: Callable[..., Call | None],
    given: dict[str, Any],
    kinds: dict[str, str],
    read: set[str],
    written: set[str],
) -> Call | None:
    """The call with each argument in `kinds` as bytes; `read` and `written` are those that the operation does."""
    device = backends.select()
    typed = {}
    for name, kind in kinds.items():
        label, writable = f"{operation}: {name}", name in written
        if kind == VECTOR:
            typed[name] = resolve_blocks(given[name], label, comm.size, writable=writable, device=device)
        else:
            blocks = comm.size if kind == BLOCKS else 1
            typed[name] = resolve_typed(given[name], label, writable=writable, device=device, blocks=blocks)
    packed = reserve(comm, {name: each for name, each in typed.items() if not each.is_contiguous})
    bytes_of = {name: _spec(each, packed.get(name), kinds[name]) for name, each in typed.items()}
    call = make(comm, **{**given, **bytes_of})
    before = [each for name, each in packed.items() if name in read]
    after = [each for name, each in packed.items() if name in written]
    return None if call is None else with_copies(call, before, after)


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
    settle = call.settle

    def pack(team: Team, stream: Any) -> None:
        for each in before:
            _move(PACK, each, team, stream)

    def unpack(team: Team, plan: Plan, stream: Any) -> None:
        if settle is not None:
            settle(team, plan, stream)
        for each in after:
            _move(UNPACK, each, team, stream)

    return replace(call, ready=pack if before else None, settle=unpack if after else settle)


def _move(kernel: str, packed: Packed, team: Team, stream: Any) -> None:
    typed, address = packed
    launches = packing_of(team.device).launches(kernel, typed.parts, typed.buffer.address, address, stream)
    for function, grid, threads, parameters in launches:
        team.order.enqueue(function, grid, threads, parameters, stream)


def _spec(typed: Typed, packed: Packed | None, kind: str) -> Any:
    """A buffer argument of bytes, in packed memory or where the array is."""
    if kind != VECTOR:
        part = typed.parts[0]
        return typed.at(packed.address if packed else typed.buffer.address + part.offset, part.nbytes)
    counts = [part.nbytes for part in typed.parts]
    if packed:
        return [typed.at(packed.address, typed.nbytes), (counts, [part.start for part in typed.parts]), MPI.BYTE]
    return [typed.buffer, (counts, [part.offset for part in typed.parts]), MPI.BYTE]
