"""Windows, with every way to synchronise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import Area, pattern, positions
from ..program import Act, Buffer

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
    layout: str = "plain"  # of origin and result
    target: str = "plain"  # layout of each part
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
        memory = run.place.memory(self.place, 8 * self.span * (size + 1))
        run.place.store(memory, pattern("f8", self.span * (size + 1), index, comm.rank))
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
                elements, changed = found.read()
                run.note(f"{name} {turn} {operation} result {number}", elements)
                run.note(f"{name} {turn} {operation} bytes beside result {number}", changed)
            if self.gap:
                yield self.gap
        win.Free()

    def _access(
        self, run: Run, win: Any, comm: Any, operation: str, target: int, keys: tuple[int, ...], results: list[Any]
    ) -> None:
        """Do one operation on the part of this rank, or on the one for all."""
        n, MPI, rank = self.count, run.MPI, comm.rank
        own, common = (self._part(run, number) for number in (rank, comm.size))

        def area(values: Any, layout: str = self.layout) -> Area:
            kind = "device" if self.place == "alloc" else self.place
            made = Area(run, Buffer(kind, "f8", layout, True), len(values), values=values)
            run.kept.append(made.memory)  # as long as the epoch
            return made

        origin = area(pattern("f8", n, *keys, target))
        match operation:
            case "Put" | "Rput":
                request = getattr(win, operation)(origin.argument(), target, own)
            case "Get" | "Rget":
                request = getattr(win, operation)(origin.argument(), target, own)
                results.append(origin)
            case "Accumulate":
                request = win.Accumulate(origin.argument(), target, common, MPI.SUM)
            case "Get_accumulate":
                results.append(area(np.zeros(n)))
                request = win.Get_accumulate(origin.argument(), results[-1].argument(), target, own, MPI.SUM)
            case _:
                if n == 0:
                    return
                results.append(area(np.zeros(1), "plain"))
                one = area(np.ones(1), "plain")
                request = win.Fetch_and_op(one.argument(), results[-1].argument(), target, self.span * rank)
        if request is not None:
            request.Wait()

    @property
    def span(self) -> int:
        """Elements of the window from one part to the next."""
        places = positions(self.target, self.count)
        return int(np.ptp(places)) + 1 if self.count else 0

    def _part(self, run: Run, number: int) -> Any:
        """Return a part as the target of an operation."""
        begin = self.span * number - int(positions(self.target, self.count).min(initial=0))
        if self.target == "plain":
            return begin if self.layout == "plain" else [begin, self.count, run.MPI.DOUBLE]
        return [begin, min(self.count, 1), run.datatype(Buffer(self.place, "f8", self.target), self.count)]

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
