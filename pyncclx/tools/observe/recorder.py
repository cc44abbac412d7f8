"""Count a program's operations by how they ran, and print the counts of all ranks."""

from __future__ import annotations

from mpi4py import MPI

from ...events import HOST, NATIVE, STAGED, Event, listeners

_MEANINGS = {
    NATIVE: "device arrays, moved by kernels",
    STAGED: "device arrays, copied to host memory and back, with MPI between; see `comm.explain`",
    HOST: "host arrays, by mpi4py",
}


Count = tuple[int, int, float]  # calls, bytes, seconds
Counts = dict[tuple[str, str], Count]  # key: operation and how it ran


class Recorder:
    """Counter of operations of all communicators, windows and token shuffles.

    Counting begins when the object is made.

    Each start of a persistent operation is a call. The time of nonblocking and persistent operations ends when their
    method returns.
    """

    def __init__(self) -> None:
        self._counts: Counts = {}
        listeners.append(self._count)

    def _count(self, event: Event) -> None:
        calls, nbytes, seconds = self._counts.get((event.operation, event.how), (0, 0, 0.0))
        seconds += (event.ended - event.began) / event.together
        self._counts[event.operation, event.how] = calls + 1, nbytes + event.nbytes, seconds

    def print(self) -> None:
        """Print the counts of all ranks on rank 0, the longest time first (collective)."""
        if MPI.Is_finalized() or not MPI.Is_initialized():
            return
        counts_of_ranks = MPI.COMM_WORLD.gather(self._counts)
        if counts_of_ranks is None:
            return
        total: Counts = {}
        for key in dict.fromkeys(key for counts in counts_of_ranks for key in counts):
            calls, nbytes, seconds = zip(*(counts[key] for counts in counts_of_ranks if key in counts), strict=True)
            total[key] = sum(calls), sum(nbytes), max(seconds)
        print(f"\n{'operation':24}{'how':8}{'calls':>10}{'MB':>12}{'seconds':>10}   (of the slowest rank)")
        rows = sorted(total.items(), key=lambda row: row[1][-1], reverse=True)
        for (operation, how), (calls_of_all, nbytes_of_all, slowest) in rows:
            print(f"{operation:24}{how:8}{calls_of_all:10}{nbytes_of_all / 1e6:12.3f}{slowest:10.3f}")
        for how in dict.fromkeys(how for (_, how), _ in rows):
            print(f"{how}: {_MEANINGS[how]}", flush=True)
