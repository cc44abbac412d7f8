"""Counts of a program's operations by how they ran, printed over all ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from mpi4py import MPI

from ...events import HOST, NATIVE, STAGED, Event, listeners

_MEANINGS = {
    NATIVE: "device arrays, moved by kernels",
    STAGED: "device arrays, copied to host memory and back, with MPI between; see `comm.explain`",
    HOST: "host arrays, by mpi4py",
}


@dataclass(slots=True)
class Count:
    """Calls of one operation, with the sums of bytes and seconds."""

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0


Counts = dict[tuple[str, str], Count]  # key: operation, and how it ran


class Recorder:
    """Counter of operations of all communicators, windows and token shuffles.

    Counting begins when the object is made.

    Each start of a persistent operation is a call. The time of nonblocking and persistent operations ends when their
    method returns.
    """

    def __init__(self) -> None:
        self._counts: Counts = defaultdict(Count)
        listeners.append(self._count)

    def _count(self, event: Event) -> None:
        count = self._counts[event.operation, event.how]
        count.calls += 1
        count.nbytes += event.nbytes
        count.seconds += (event.ended - event.began) / event.together

    def print(self) -> None:
        """Print the counts of all ranks on rank 0, the longest time first (collective)."""
        if MPI.Is_finalized() or not MPI.Is_initialized():
            return
        counts_of_ranks = MPI.COMM_WORLD.gather(self._counts)
        if counts_of_ranks is None:
            return
        rows = sorted(_total(counts_of_ranks).items(), key=lambda row: row[1].seconds, reverse=True)
        print(f"\n{'operation':24}{'how':8}{'calls':>10}{'MB':>12}{'seconds':>10}   (of the slowest rank)")
        for (operation, how), count in rows:
            print(f"{operation:24}{how:8}{count.calls:10}{count.nbytes / 1e6:12.3f}{count.seconds:10.3f}")
        for how in dict.fromkeys(how for (_, how), _ in rows):
            print(f"{how}: {_MEANINGS[how]}", flush=True)


def _total(counts_of_ranks: list[Counts]) -> Counts:
    """Return the sums of calls and bytes over ranks, and the slowest rank's seconds."""
    total: Counts = defaultdict(Count)
    for counts in counts_of_ranks:
        for key, count in counts.items():
            total[key].calls += count.calls
            total[key].nbytes += count.nbytes
            total[key].seconds = max(total[key].seconds, count.seconds)
    return total
