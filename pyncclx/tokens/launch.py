"""Launching a token shuffle's kernels, each at once or in two halves, on memory that is allocated for the first."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import events
from ..arrays.buffers import Buffer
from ..launch import kernels
from ..operators.row_transform import NONE, Applied
from ..recording import layout
from ..team.base import IntraBase
from ..team.compare import compare
from ..team.state import state_of
from ..team.streams import stream_for
from .memory import Memory
from .parameters import RECEIVE, SEND, CollectArgs, CombineArgs, DispatchArgs
from .rows import Handle
from .settings import Settings

_SUFFIXES = {SEND | RECEIVE: "", SEND: "_begin", RECEIVE: "_end"}  # of methods' names
_MOST_KEPT = 256
OF_CURRENT = True  # results are new arrays, whose memory the current stream may still use for older ones
_Self = TypeVar("_Self", bound="Launching")


@dataclass(slots=True, kw_only=True)
class Move:
    """One dispatch, combine or collect, ready to be launched."""

    operation: str
    arguments: DispatchArgs | CombineArgs | CollectArgs
    buffers: tuple[Buffer, ...]
    handle: Handle
    result: Any  # what the caller gets
    applied: Applied = NONE  # the transform

    @property
    def signature(self) -> tuple[Any, ...]:
        """What must be the same on all ranks."""
        by_handle = isinstance(self.arguments, DispatchArgs) and bool(self.arguments.reuse)
        return *self.applied.template[:2], self.applied.name, "by a handle" if by_handle else ""


class Launching(Settings):
    """The part of a token shuffle that launches: with its memory, and the move that has begun."""

    _memory: Memory | None = None
    _begun: Move | None = None  # the first half is launched, the second is not
    _closed = False

    def __init__(self, comm: IntraBase, *args: Any, **options: Any) -> None:
        super().__init__(comm, *args, **options)
        self._records: dict[Hashable, Callable[[], None]] = {}  # of earlier moves

    def memory(self) -> Memory:
        """The memory, allocated at the first use. Collective then."""
        if self._closed or (self._memory is not None and self._memory not in self._memory.team.dependents):
            raise ValueError("the token shuffle, or its communicator, has been freed; make a new one")
        if self._memory is None:
            self._memory = Memory(self)
        return self._memory

    def _end(self, operation: str) -> Any:
        move = self._begun
        if move is None or move.operation != operation:
            raise RuntimeError(f"{operation.lower()}_end without {operation.lower()}_begin")
        return self._launch(move, RECEIVE)

    def _launch(self, move: Move, phases: int = SEND | RECEIVE) -> Any:
        """Launch a kernel, or one half of its work; returns the move's result."""
        comm, name, state = self.comm, move.operation.lower(), state_of(self.comm)
        began = events.begin(name + _SUFFIXES[phases], comm) if events.listeners else None
        if self._begun is not None and phases & SEND:
            begun = self._begun.operation.lower()
            raise RuntimeError(f"{name} after {begun}_begin: call {begun}_end before")
        self._record(move, name + _SUFFIXES[phases])
        if state.checking:
            compare(comm, move.operation, (*move.signature, phases))
        self._enqueue(move, phases)
        self._begun = move if phases == SEND else None
        if state.blocking == "host":
            self._drain()
        if began is not None:
            nbytes = max(buffer.nbytes for buffer in move.buffers)
            events.emit(name + _SUFFIXES[phases], events.NATIVE, nbytes, began, comm=comm)
        return move.result

    def _enqueue(self, move: Move, phases: int) -> None:
        """Launch the kernel on the current stream."""
        comm, team, memory, name = self.comm, self.comm.team, self.memory(), move.operation.lower()
        function = kernels.get(comm, team, f"tokens/{name}.cu", name, *move.applied.template)
        stream = stream_for(team.device, move.buffers, state_of(comm), OF_CURRENT)
        move.arguments.phases = phases
        parameters = memory.packed[move.operation] + move.arguments.pack()
        team.order.enqueue(function, memory.blocks, memory.threads, parameters, stream, memory.early)

    def _drain(self) -> None:
        """Wait until the device has done it."""
        self.comm.team.drain()

    def _record(self, move: Move, name: str) -> None:
        """Write the entry of the flight recorder."""
        nbytes = max(buffer.nbytes for buffer in move.buffers)
        signature = name, *move.signature
        key = signature, nbytes
        if (again := self._records.get(key)) is not None:
            again()
            return
        state = state_of(self.comm)
        calls = state.calls(self.comm)
        if calls is not None:
            if state.team is not None:
                state.team.errors.check()  # a call that raises them has no number: it is made again
            begun = calls.begin(name, layout.SHUFFLE)
            begun.describe(operation=name, signature=signature, nbytes=nbytes)
            if len(self._records) < _MOST_KEPT:
                self._records[key] = begun.launched(move.operation.lower(), 0, beside=True)

    def Free(self) -> None:
        """Release the memory. Collective; rows and handles must not be used any more.

        It waits for the communicator's kernels here, and for all ranks. A second call does nothing. If ranks do not
        come since the communicator has failed, the memory goes back with the communicator's.
        """
        memory, self._memory, self._closed = self._memory, None, True
        if memory is None or memory not in memory.team.dependents:
            return
        comm, team = cast(MPI.Intracomm, self.comm), memory.team
        if state_of(self.comm).part(comm, team.errors, lambda: mpi_bootstrap.agree(comm, team.finish)):
            memory.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:  # Free waits for all ranks, and those of a rank that raises may never come here
            self.Free()
