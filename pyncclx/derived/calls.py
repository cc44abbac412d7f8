"""Collectives with derived datatypes, which work on packed copies.

One kernel packs before the operation, another one unpacks after it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mpi4py import MPI

from .. import backends
from ..errors import DerivedDatatype
from ..launch import keys
from ..launch.call import is_in_place
from ..team.team import Team
from .packing import PACK, UNPACK, Launch, packing_of
from .typed import Typed, aligned, resolve_blocks, resolve_typed
from .typemap import known_typemap

# Kinds of buffers: one message, a block for each rank, blocks with counts and displacements.
ONE, BLOCKS, VECTOR = "one", "blocks", "vector"
_Make = TypeVar("_Make", bound=Callable[..., Any])
AnyCall = TypeVar("AnyCall", bound=Any)  # launch.Call or nodes.SpanningCall


keys.derived_keys.append(known_typemap)


@dataclass(frozen=True, slots=True)
class Packed:
    """An argument that has a packed copy."""

    typed: Typed
    address: int  # address of the copy


def takes_derived(operation: str, *kinds: str, at_root: str | None = None) -> Callable[[_Make], _Make]:
    """Decorate a function that makes calls, so that it accepts derived datatypes.

    Parameters
    ----------
    operation : str
    *kinds : {ONE, BLOCKS, VECTOR}
        Kinds of the function's first arguments after the communicator.
    at_root : str, optional
        Name of the argument that only root uses.
    """

    def decorate(make: _Make) -> _Make:
        names = list(inspect.signature(make).parameters)[1:]
        kind_of = dict(zip(names, kinds, strict=False))

        @functools.wraps(make)
        def native(comm: Any, *args: Any, **kwargs: Any) -> Any:
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
            return _in_bytes(comm, operation, make, given, used, *_directions(used, at_root, is_root=is_root))

        return native  # type: ignore[return-value]

    return decorate


def _directions(used: Collection[str], at_root: str | None, *, is_root: bool) -> tuple[str, str]:
    """Return the names of the buffers that this rank reads and writes, or ""."""
    if "buf" in used:
        return ("buf", "") if is_root else ("", "buf")
    in_place = "sendbuf" not in used and (at_root != "sendbuf" or is_root)
    return "recvbuf" if in_place else "sendbuf", "recvbuf"


def _in_bytes(
    comm: Any, operation: str, make: Any, given: dict[str, Any], used: dict[str, str], read: str, written: str
) -> Any:
    """Return the call with buffers as bytes, packed if they are not contiguous.

    `used` has the kind of each buffer that this rank uses. `read` and `written` are names of buffers, or "".
    """
    typed = {
        name: _resolve(given[name], f"{operation}: {name}", kind, comm.size, writable=name == written)
        for name, kind in used.items()
    }
    packed = reserve(comm, {name: each for name, each in typed.items() if not each.is_contiguous})
    bytes_of = {name: _spec(each, packed.get(name), used[name]) for name, each in typed.items()}
    call = make(comm, **{**given, **bytes_of})
    before, after = ([packed[name]] if name in packed else [] for name in (read, written))
    return None if call is None else with_copies(call, before, after)


def _resolve(spec: Any, label: str, kind: str, size: int, *, writable: bool) -> Typed:
    device = backends.select()
    if kind == VECTOR:
        return resolve_blocks(spec, label, size, writable=writable, device=device)
    return resolve_typed(spec, label, writable=writable, device=device, blocks=size if kind == BLOCKS else 1)


def reserve(comm: Any, typed: dict[str, Typed]) -> dict[str, Packed]:
    """Return packed memory for the arguments that need it.

    Collective at the first use, if any argument needs it. The memory lasts as long as the communicator, so graphs may
    use it. Calls share it, because they run one after the other.
    """
    needed = {name: each for name, each in typed.items() if each.nbytes}
    if not needed:
        return {}
    address = comm.scratch.address(sum(aligned(each.nbytes) for each in needed.values()))
    packed = {}
    for name, each in needed.items():
        packed[name] = Packed(each, address)
        address += aligned(each.nbytes)
    return packed


def with_copies(call: AnyCall, before: list[Packed], after: list[Packed]) -> AnyCall:
    """Return `call` with copies: it packs `before` first, and unpacks `after` last.

    Both are lists of the call's buffers with their packed copies. Buffers that the call only writes are not in
    `before`; buffers that it only reads are not in `after`. The call may run inside a node or over several nodes.
    """
    call_after, pack, unpack = call.after, Moves(PACK, before), Moves(UNPACK, after)

    def unpack_last(team: Team, plan: Any, stream: Any) -> None:
        if call_after is not None:
            call_after(team, plan, stream)
        unpack(team, stream)

    is_again = call.before is None and call_after is None
    last = unpack_last if after else call_after
    return replace(call, before=pack if before else None, after=last, is_again=is_again)


class Moves:
    """Copies between arrays and packed memory. Holds addresses, not the arrays."""

    def __init__(self, kernel: str, packed: list[Packed]) -> None:
        self._kernel = kernel
        self._moved = [(each.typed.parts, each.typed.buffer.address, each.address) for each in packed]
        # Cached launches; None if they need tables, whose addresses may change.
        self._launches: list[Launch] | None = None

    def __call__(self, team: Team, stream: Any) -> None:
        """Enqueue the copies."""
        for launch in self._launches or self._find(team, stream):
            team.order.enqueue(*launch, stream)

    def _find(self, team: Team, stream: Any) -> list[Launch]:
        packing = packing_of(team.device)
        launches = [launch for moved in self._moved for launch in packing.launches(self._kernel, *moved, stream)]
        if not any(packing.has_tables(*moved) for moved in self._moved):
            self._launches = launches
        return launches


def _spec(typed: Typed, packed: Packed | None, kind: str) -> Any:
    """Return a buffer argument of bytes, in packed memory or in the array."""
    if kind != VECTOR:
        part = typed.parts[0]
        return typed.at(packed.address if packed else typed.buffer.address + part.offset, part.nbytes)
    counts = [part.nbytes for part in typed.parts]
    if packed:
        return [typed.at(packed.address, typed.nbytes), (counts, [part.start for part in typed.parts]), MPI.BYTE]
    return [typed.buffer, (counts, [part.offset for part in typed.parts]), MPI.BYTE]
