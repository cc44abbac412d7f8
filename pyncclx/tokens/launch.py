"""Launch a token shuffle's kernels, whole or in two halves.

The first launch allocates the memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import events
from ..arrays.buffers import Buffer
from ..backends import Function
from ..launch import kernels
from ..launch.keys import key_of_call
from ..operators.row_transform import NONE, Applied
from ..recording import layout
from ..system.process import BoundedCache
from ..team.base import IntraBase
from ..team.compare import compare
from ..team.ending import part
from ..team.plans import Producer, producers_of
from ..team.state import state_of
from ..team.streams import stream_for
from .memory import Memory
from .parameters import RECEIVE, SEND, VARYING, CollectArgs, CombineArgs, DispatchArgs
from .rows import Handle
from .settings import Settings

# Suffixes of methods' names.
_SUFFIXES = {SEND | RECEIVE: "", SEND: "_begin", RECEIVE: "_end"}
# Calls always wait for the current stream. Results are new arrays, and the stream may still be using their memory for
# deleted arrays.
OF_CURRENT = True
_Self = TypeVar("_Self", bound="Launching")


class CachedMove(NamedTuple):
    """A cached move with both halves, to be launched again with new result arrays."""

    operation: str
    function: Function
    head: bytes  # kernel's parameter before the varying addresses
    tail: bytes  # kernel's parameter after them
    producers: tuple[Producer, ...]
    record: Callable[[], None] | None  # writer of the flight recorder's entry
    tokens: int  # number of this rank's tokens
    out: int  # address of a combine's results


@dataclass(slots=True, kw_only=True)
class Move:
    """One dispatch, combine or collect, ready for launch."""

    operation: str
    arguments: DispatchArgs | CombineArgs | CollectArgs
    buffers: tuple[Buffer, ...]
    handle: Handle
    result: Any  # caller's result
    key: Hashable = None  # cache key of a whole move
    applied: Applied = NONE  # transform

    @property
    def signature(self) -> tuple[Any, ...]:
        """Values that must be the same on all ranks."""
        by_handle = isinstance(self.arguments, DispatchArgs) and bool(self.arguments.reuse)
        return *self.applied.template[:2], self.applied.name, "by a handle" if by_handle else ""


class Launching(Settings):
    """Base class of token shuffles: their memory, the move in progress, and launches."""

    _memory: Any = None  # `Memory`, or over nodes `SpanningMemory`
    _begun: Move | None = None  # move in progress: only its first half has been launched
    _closed = False

    def __init__(self, comm: IntraBase, *args: Any, **options: Any) -> None:
        super().__init__(comm, *args, **options)
        # Cached writers of the flight recorder's entries.
        self._records: BoundedCache[Hashable, Callable[[], None]] = BoundedCache()
        self.cached_moves: BoundedCache[Hashable, CachedMove] = BoundedCache()

    def memory(self) -> Any:
        """Return the shuffle's device memory; the first call allocates it (collective).

        Raise ValueError if the shuffle or its communicator has been freed.
        """
        if self._closed or (self._memory is not None and self._memory not in self._memory.team.dependents):
            raise ValueError("the token shuffle, or its communicator, has been freed; make a new one")
        if self._memory is None:
            self._memory = self._make_memory()
        return self._memory

    def _make_memory(self) -> Any:
        return Memory(self)

    def _end(self, operation: str) -> Any:
        move = self._begun
        if move is None or move.operation != operation:
            raise RuntimeError(f"{operation.lower()}_end without {operation.lower()}_begin")
        return self.launch(move, RECEIVE)

    def launch(self, move: Move, phases: int = SEND | RECEIVE) -> Any:
        """Launch a move's kernel, or one half of its work; return the move's result."""
        comm, name, state = self.comm, move.operation.lower(), state_of(self.comm)
        if state.background is not None:
            state.settle()
        began = events.begin(name + _SUFFIXES[phases], comm) if events.listeners else None
        if self._begun is not None and phases & SEND:
            begun = self._begun.operation.lower()
            raise RuntimeError(f"{name} after {begun}_begin: call {begun}_end before")
        record = self._record(move, name + _SUFFIXES[phases])
        if state.checking:
            compare(comm, move.operation, (*move.signature, phases))
        self._enqueue(move, phases, record)
        self._begun = move if phases == SEND else None
        if state.blocking == "host":
            self._drain()
        if began is not None:
            nbytes = max(buffer.nbytes for buffer in move.buffers)
            events.emit(name + _SUFFIXES[phases], events.NATIVE, nbytes, began, comm=comm)
        return move.result

    def key_of(self, *arguments: Any) -> Hashable:
        """Return the cache key of a whole move; None if it cannot be cached."""
        state = self.comm._state
        if events.listeners or self._begun is not None or state is None or state.checking:
            return None
        return key_of_call(None, arguments, {})

    def launch_again(self, move: CachedMove, *addresses: int) -> None:
        """Launch a cached move with this call's addresses."""
        memory, state = self.memory(), state_of(self.comm)
        if state.background is not None:
            state.settle()
        team = memory.team
        team.errors.check()
        if move.record is not None:
            move.record()
        stream = stream_for(team.device, move.producers, state, OF_CURRENT)
        parameters = move.head + VARYING[move.operation].pack(*addresses) + move.tail
        team.order.enqueue(move.function, memory.blocks, memory.threads, parameters, stream, memory.early)
        if state.blocking == "host":
            self._drain()

    def _enqueue(self, move: Move, phases: int, record: Callable[[], None] | None) -> None:
        """Launch the kernel on the current stream; cache the move if it has a key."""
        comm, team, memory, name = self.comm, self.comm.team, self.memory(), move.operation.lower()
        function = kernels.get(comm, team, f"tokens/{name}.cu", name, *move.applied.template)
        stream = stream_for(team.device, move.buffers, state_of(comm), OF_CURRENT)
        move.arguments.phases = phases
        shuffle, arguments = memory.packed[move.operation], move.arguments.pack()
        team.order.enqueue(function, memory.blocks, memory.threads, shuffle + arguments, stream, memory.early)
        if move.key is not None:
            varying = VARYING[move.operation]
            ends = shuffle + arguments[: varying.begin], arguments[varying.end :]
            producers, numbers = producers_of(move.buffers), (move.handle.tokens, getattr(move.arguments, "out", 0))
            cached = CachedMove(move.operation, function, *ends, producers, record, *numbers)
            self.cached_moves[move.key] = cached

    def _drain(self) -> None:
        """Wait until the device has completed the launched work."""
        self.comm.team.drain()

    def _record(self, move: Move, name: str) -> Callable[[], None] | None:
        """Write the flight recorder's entry, if calls are recorded.

        Return a function that writes the entry of an equal move.
        """
        nbytes = max(buffer.nbytes for buffer in move.buffers)
        signature = name, *move.signature
        key = signature, nbytes
        if (again := self._records.get(key)) is not None:
            again()
            return again
        state = state_of(self.comm)
        calls = state.calls(self.comm)
        if calls is None:
            return None
        if state.team is not None:
            # If this raises an earlier error, the call gets no number, because the program may repeat it.
            state.team.errors.check()
        begun = calls.begin(name, layout.SHUFFLE)
        begun.describe(operation=name, signature=signature, nbytes=nbytes)
        again = self._records[key] = begun.launched(move.operation.lower(), 0, beside=True)
        return again

    def Free(self) -> None:
        """Release the memory. Collective; invalidates rows and handles.

        It waits for the communicator's kernels on this rank, and for all ranks. A second call does nothing. If the
        communicator has failed and some ranks do not call this method, the communicator's release frees the memory.
        """
        memory, self._memory, self._closed = self._memory, None, True
        if memory is None or memory not in memory.team.dependents:
            return
        comm, team, state = cast(MPI.Intracomm, self.comm), memory.team, state_of(self.comm)
        meet = functools.partial(state.meet, comm, of_part=team.errors)
        if part(meet, comm, team.errors, lambda: mpi_bootstrap.agree(comm, team.finish)):
            memory.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Free waits for all ranks. If this rank has raised, others may never call it.
        if kind is None:
            self.Free()
