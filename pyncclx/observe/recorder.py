"""What a program's operations were done by: counted event by event, printed over all ranks."""

from __future__ import annotations

from mpi4py import MPI

from ..events import HOST, NATIVE, STAGED, Event, listeners

_MEANINGS = {
    NATIVE: "device arrays, moved by kernels",
    STAGED: "device arrays, copied to host memory and back, with MPI between; see `comm.explain`",
    HOST: "host arrays, by mpi4py",
}


class Recorder:
    """Counts the operations of all communicators, windows and token shuffles, from when it is made.

    Of persistent operations each start is a call. The time of nonblocking and persistent ones ends when their method
    returns.

    Attributes
    ----------
    rows : dict
        By operation and how it was done: calls, bytes, seconds.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[int, int, float]] = {}
        listeners.append(self._count)

    def _count(self, event: Event) -> None:
        calls, nbytes, seconds = self.rows.get((event.operation, event.how), (0, 0, 0.0))
        own = (event.ended - event.began) / event.together
        self.rows[event.operation, event.how] = calls + 1, nbytes + event.nbytes, seconds + own

    def print(self) -> None:
        """Print the sum over all ranks on rank 0, what took longest first. Collective."""
        if MPI.Is_finalized():
            return
        rows_of_ranks = MPI.COMM_WORLD.gather(self.rows)
        if rows_of_ranks is None:
            return
        lines = []
        for key in {key for rows in rows_of_ranks for key in rows}:
            found = [rows[key] for rows in rows_of_ranks if key in rows]
            calls, nbytes = sum(row[0] for row in found), sum(row[1] for row in found)
            lines.append((max(row[2] for row in found), key, calls, nbytes))
        print(f"\n{'operation':24}{'how':8}{'calls':>10}{'MB':>12}{'seconds':>10}   (of the slowest rank)")
        lines.sort(reverse=True)
        for seconds, (operation, how), calls, nbytes in lines:
            print(f"{operation:24}{how:8}{calls:10}{nbytes / 1e6:12.3f}{seconds:10.3f}")
        for how in dict.fromkeys(how for _, (_, how), _, _ in lines):
            print(f"{how}: {_MEANINGS[how]}", flush=True)
