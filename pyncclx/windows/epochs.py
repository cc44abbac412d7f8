"""MPI's epochs for windows of device memory; ending an epoch waits for the device."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap import interrupts_deferred

from ..errors import MPIError, PeerTimeout, RankFailed, Revoked
from ..recording.layout import ANY
from ..system import settings
from .accesses import Accesses
from .exposed import Attached

WORD_NBYTES = 8  # bytes of MPI's window on each rank


_Method = TypeVar("_Method", bound=Callable[..., None])
_COLLECTIVE = ("Fence",)


def recorded(method: _Method) -> _Method:
    """Decorate a window method so that the flight recorder records its calls.

    While a call waits, ``python -m pyncclx status`` shows it.
    """
    name = method.__name__
    with_rank = "rank" in inspect.signature(method).parameters

    @functools.wraps(method)
    def either(self: Epochs, *args: Any, **kwargs: Any) -> None:
        calls = self._calls()
        if calls is None:
            method(self, *args, **kwargs)
        elif name in _COLLECTIVE:
            with calls.meeting(name):
                method(self, *args, **kwargs)
        else:
            rank = (args[0] if args else kwargs.get("rank", ANY)) if with_rank else ANY
            with calls.waiting(name):
                entry = self._record(name, rank)
                method(self, *args, **kwargs)
                calls.end(entry)

    return cast(_Method, either)


class Epochs(Accesses):
    """The methods of `pyncclx.Win` that begin and end epochs, or complete operations.

    Methods that complete operations wait on the host until the device has finished this rank's operations. Then they
    copy the results of staged operations to the device.
    """

    @recorded
    def Fence(self, assertion: int = 0) -> None:
        """End an epoch of all ranks and begin the next, like mpi4py's Fence. Collective.

        Parameters
        ----------
        assertion : int
            An assertion of MPI, such as MPI.MODE_NOPRECEDE.
        """
        with self._deferred(self._state.reach):
            if self._state.copies is not None:
                mpi_bootstrap.agree(self._state.comm, lambda: None if assertion & MPI.MODE_NOSTORE else self._give())
            # Synchronize the ranks. MPI sees no accesses to its window, so its Fence might return at once, or wait
            # forever.
            elif self._state.reach is not None:
                mpi_bootstrap.agree(self._state.comm, self._wait_for_device)
            super().Fence(assertion)
            self._copy_back()
            if self._state.copies is not None:
                mpi_bootstrap.agree(self._state.comm, self._take)

    @recorded
    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Acquire a rank's lock, and begin an epoch with the rank, like mpi4py's Lock.

        Raises
        ------
        RankFailed
            For device memory, if a rank has failed; it may have held the lock.
        PeerTimeout
            For device memory, if another rank has held the lock for longer than PYNCCLX_TIMEOUT.
        """
        begin = functools.partial(super().Lock, rank, lock_type, assertion)
        self._lock(begin, super().Unlock, rank, shared=lock_type == MPI.LOCK_SHARED, assertion=assertion)

    @recorded
    def Lock_all(self, assertion: int = 0) -> None:
        """Acquire a shared lock on every rank, and begin an epoch with all ranks.

        It works like mpi4py's Lock_all, and raises what `Lock` raises.
        """
        begin = functools.partial(super().Lock_all, assertion)
        self._lock(begin, super().Unlock_all, shared=True, assertion=assertion)

    @recorded
    def Unlock(self, rank: int) -> None:
        """Complete the operations with a rank, and end the epoch, like mpi4py's Unlock."""
        self._unlock(super().Unlock, rank)

    @recorded
    def Unlock_all(self) -> None:
        """Complete all operations, and end the epoch with all ranks.

        It works like mpi4py's Unlock_all.
        """
        self._unlock(super().Unlock_all)

    def _lock(
        self, begin: Callable[[], None], end: Callable[..., None], *rank: int, shared: bool, assertion: int
    ) -> None:
        """Begin an epoch with one or all ranks; release all locks if a step raises.

        Waits for this library's locks have a time limit; waits for MPI's own locks have none. So this rank requests
        MPI's lock only while it holds the library's. Then no other rank holds MPI's lock, and MPI does not wait.
        """
        with ExitStack() as undo:
            # If a signal handler raised after a step and before its `callback`, a lock would never be released.
            with self._deferred(self._state.locks):
                self._take_locks(undo, *rank, shared=shared, assertion=assertion)
                begin()
                undo.callback(end, *rank)
                if self._state.reach is not None and self._state.reach.in_use:
                    for each in self._ranks(*rank):  # MPI may defer a lock until the first access
                        self._access(each, self._state.words[each] if isinstance(self._state.reach, Attached) else 0)
                self._hold_own(*rank)
                self._take(*rank)
            undo.pop_all()

    def _take_locks(self, undo: ExitStack, *rank: int, shared: bool, assertion: int) -> None:
        """Wait for this library's locks of one or all ranks."""
        if self._state.locks is None or assertion & MPI.MODE_NOCHECK:
            return
        for each in self._ranks(*rank):
            if not self._state.locks.acquire(each, shared=shared, check=self._check):
                text = f"this process holds the lock of rank {each}, or another of its threads waits for it"
                raise MPIError(MPI.ERR_RMA_SYNC, f"{'Lock' if rank else 'Lock_all'}: {text}")
            undo.callback(self._state.locks.release, each)

    def _unlock(self, end: Callable[..., None], *rank: int) -> None:
        """End an epoch with one or all ranks, and release its locks."""

        def unlock(*rank: int) -> None:
            try:
                end(*rank)
            finally:  # also if a signal handler raises after MPI's call
                self._release(*rank)

        try:
            self._complete_by(unlock, *rank, before=functools.partial(self._give, *rank))
        except (RankFailed, Revoked):
            self._release(*rank)
            raise

    def _release(self, *rank: int) -> None:
        if self._state.locks is not None:
            for each in self._ranks(*rank):
                self._state.locks.release(each)

    def _ranks(self, *rank: int) -> Iterable[int]:
        """Return the rank of a call, or all ranks if the call names none.

        Return nothing for PROC_NULL, and for a rank that MPI will reject.
        """
        size = self._state.comm.size
        return [each for each in rank if 0 <= each < size] if rank else range(size)

    def _check(self) -> None:
        """Raise if a window of device memory is unusable because a rank has failed."""
        if self._state.reach is not None and self._state.reach.in_use:
            self._state.reach.team.errors.check()

    @recorded
    def Flush(self, rank: int) -> None:
        """Complete operations with a rank, here and at the target, like mpi4py's Flush."""
        self._complete_by(super().Flush, rank)

    @recorded
    def Flush_all(self) -> None:
        """Complete all operations, here and at the targets, like mpi4py's Flush_all."""
        self._complete_by(super().Flush_all)

    def Flush_local(self, rank: int) -> None:
        """Complete the operations with a rank here, so that their arrays can be reused.

        It works like mpi4py's Flush_local.
        """
        self._complete_by(super().Flush_local, rank)

    def Flush_local_all(self) -> None:
        """Complete all operations here, so that their arrays can be reused.

        It works like mpi4py's Flush_local_all.
        """
        self._complete_by(super().Flush_local_all)

    @recorded
    def Post(self, group: MPI.Group, assertion: int = 0) -> None:
        """Expose this rank's memory to a group, after its stores, like mpi4py's Post."""
        self._wait_for_device()
        if not assertion & MPI.MODE_NOSTORE:
            self._give()
        super().Post(group, self._checked(assertion))

    @recorded
    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        """Begin an epoch of operations with the ranks of a group, like mpi4py's Start."""
        super().Start(group, self._checked(assertion))

    def _checked(self, assertion: int) -> int:
        """Remove MODE_NOCHECK from an assertion if MPI has its own window.

        With MODE_NOCHECK, Open MPI (5.0) adds the ranks that complete an epoch to those of the previous epoch, and
        `Wait` never returns.
        """
        return assertion if self._state.reach is None else assertion & ~MPI.MODE_NOCHECK

    @recorded
    def Complete(self) -> None:
        """Complete operations since `Start`, and end the epoch, like mpi4py's Complete."""
        self._complete_by(super().Complete)

    def Wait(self) -> Literal[True]:
        """Wait until the group has completed its operations here, like mpi4py's Wait."""
        if self._state.reach is None and self._state.copies is None:
            return super().Wait()
        deadline = time.monotonic() + settings.TIMEOUT.get()
        while not self.Test():
            self._check()
            if time.monotonic() > deadline:
                raise PeerTimeout("Win.Wait", 0, self._state.comm.rank, -1, 0, 0)
            os.sched_yield()
        return True

    def Test(self) -> bool:
        """Return whether the group has completed its operations here, like mpi4py's Test."""
        with self._deferred():
            over = super().Test()
            if over:
                self._take()
        return over

    def Sync(self) -> None:
        """Make the stores of this rank and of others visible to each other.

        It works like mpi4py's Sync.
        """
        self._wait_for_device()
        self._give()
        super().Sync()
        self._take()

    def _complete_by(self, call: Callable[..., None], *rank: int, before: Callable[[], None] = lambda: None) -> None:
        """Complete operations with one or all ranks, by a call to MPI.

        MPI is called even after an error of the device, because other ranks may wait for the call. It is not called
        after the failure of a rank, because MPI might wait for that rank.
        """

        def complete() -> None:
            with self._deferred():
                call(*rank)
                self._copy_back(*rank)

        errors = []
        for step in (before, self._wait_for_device, self._check, complete):
            try:
                step()
            except (RankFailed, Revoked):
                raise
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _deferred(self, part: object = None) -> AbstractContextManager[None]:
        """Defer signal handlers between MPI's part of a call and the library's, if any."""
        is_of_mpi_alone = part is None and self._state.origins is None and self._state.copies is None
        return nullcontext() if is_of_mpi_alone else interrupts_deferred()

    def _wait_for_device(self) -> None:
        if self._state.reach is not None and self._state.reach.in_use:
            self._state.reach.synchronize()
