"""Windows, with every way to synchronise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import pattern
from ..program import Act

if TYPE_CHECKING:
    from ..execute import Run

OPERATIONS = ("Put", "Get", "Accumulate", "Get_accumulate", "Rput", "Rget", "Fetch_and_op")
SYNCHRONISATIONS = ("fence", "lock", "exclusive", "lock_all", "post")


@dataclass(frozen=True, repr=False)
class Window(Act):
    """Each rank accesses a part of its own, and one for all, in the windows of some others, in some epochs."""

    place: str = "alloc"
    synchronisation: str = "fence"
    operations: tuple[str, ...] = ("Put",)
    count: int = 3
    distances: tuple[int, ...] = (1,)
    gap: int = 0  # acts between epochs
    refused: bool = False  # whether a lock of a rank that is not there, or a put to it, is tried first

    def legal(self) -> Window:
        """Post and start name the other ranks only."""
        distances = self.distances
        if self.synchronisation == "post":
            distances = tuple(dict.fromkeys(max(each, 1) for each in distances))
        return dataclasses.replace(self, distances=distances)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, MPI = run.comms.of(self, index), run.MPI
        name, size = f"{index} {self.synchronisation}", comm.size
        memory = run.place.memory(self.place, 8 * self.count * (size + 1))
        run.place.store(memory, pattern("f8", self.count * (size + 1), index, comm.rank))
        win = MPI.Win.Create(memory, 8, comm=comm)
        targets = sorted({(comm.rank + each) % size for each in self.distances})
        if self.synchronisation == "post":
            targets = [target for target in targets if target != comm.rank]
        if self.refused:
            run.attempt(f"{name} refused", lambda: win.Lock(99))
            run.attempt(f"{name} refused", lambda: win.Lock(0, 12345))
        for turn, operation in enumerate(self.operations):
            results: list[Any] = []

            def access(target: int, operation: str = operation, turn: int = turn, results: Any = results) -> None:
                self._access(run, win, comm, operation, target, (index, comm.rank, turn), results)

            self._epoch(run, win, comm, targets, access)
            comm.Barrier()
            win.Lock(comm.rank)
            run.note(f"{name} {turn} {operation}", run.place.load(memory).view("f8"))
            win.Unlock(comm.rank)
            comm.Barrier()
            for number, found in enumerate(results):
                run.note(f"{name} {turn} {operation} result {number}", run.place.load(found).view("f8"))
            if self.gap:
                yield self.gap
        win.Free()

    def _access(
        self, run: Run, win: Any, comm: Any, operation: str, target: int, keys: tuple[int, ...], results: list[Any]
    ) -> None:
        """Do one operation on the part of this rank, or on the one for all."""
        n, MPI = self.count, run.MPI
        kind = "device" if self.place == "alloc" else self.place
        buffer, own, common = run.place.memory(kind, 8 * n), n * comm.rank, n * comm.size
        run.place.store(buffer, pattern("f8", n, *keys, target))
        run.kept.append(buffer)  # as long as the epoch
        data = self._typed(run, buffer)
        match operation:
            case "Put" | "Rput":
                request = getattr(win, operation)(data, target, own)
            case "Get" | "Rget":
                request = getattr(win, operation)(data, target, own)
                results.append(buffer)
            case "Accumulate":
                request = win.Accumulate(data, target, common, MPI.SUM)
            case "Get_accumulate":
                found = run.place.memory(kind, 8 * n)
                run.place.store(found, np.zeros(n))
                request = win.Get_accumulate(data, self._typed(run, found), target, own, MPI.SUM)
                results.append(found)
            case _:
                if n == 0:
                    return
                one, found = run.place.memory(kind, 8), run.place.memory(kind, 8)
                run.place.store(one, np.ones(1))
                run.kept.append(one)
                both = (run.place.part(each, 0, 1, np.dtype("f8")) for each in (one, found))
                request = win.Fetch_and_op(*([each, 1, MPI.DOUBLE] for each in both), target, own)
                results.append(found)
        if request is not None:
            request.Wait()

    def _typed(self, run: Run, memory: Any) -> Any:
        part = run.place.part(memory, 0, self.count, np.dtype("f8"))
        return [part, self.count, run.MPI.DOUBLE]

    def _epoch(self, run: Run, win: Any, comm: Any, targets: list[int], access: Any) -> None:
        """Access the targets in one epoch, or in one for each."""
        MPI = run.MPI
        if self.synchronisation == "fence":
            win.Fence()
            for target in targets:
                access(target)
            win.Fence()
        elif self.synchronisation == "lock_all":
            win.Lock_all()
            for target in targets:
                access(target)
                win.Flush(target)
            win.Unlock_all()
        elif self.synchronisation == "post":
            froms = sorted({(comm.rank - each) % comm.size for each in self.distances} - {comm.rank})
            group = comm.Get_group()
            win.Post(group.Incl(froms))
            win.Start(group.Incl(targets))
            for target in targets:
                access(target)
            win.Complete()
            win.Wait()
        else:
            kind = MPI.LOCK_SHARED if self.synchronisation == "lock" else MPI.LOCK_EXCLUSIVE
            for target in targets:
                win.Lock(target, kind)
                access(target)
                win.Unlock(target)
