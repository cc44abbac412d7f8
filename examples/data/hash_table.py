"""A hash table on all ranks, by one-sided operations on GPU memory: count words.

    mpiexec -n 4 python examples/data/hash_table.py [FILE]

Every rank counts the words of its part of the text. A word's hash gives the rank whose table has the word's entry, and
the slot at which to begin. That rank makes no call. The counting rank claims an empty entry by `Compare_and_swap`, or
finds the word's entry, or tries the next slot (open addressing with linear probing). Then it adds to the count by
`Fetch_and_op`. The counts are compared with those of one process. With PYNCCLX_DEVICE=host it runs without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from mpi4py import MPI
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
from common.program import array_module, read_options, to_host

KEY, COUNT = 0, 1  # the two numbers of an entry; a key of 0 means that it is empty
ENTRY_NBYTES = 16


def main() -> int:
    """Count, compare and print; return 1 if a count is wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(comm, parse)
    words = options.file.read_text(errors="replace").lower().split()[: options.words]
    table = Table(comm, array_module(comm, "uint64"), 2 * len(set(words)) // comm.size + 16)
    begin = time.perf_counter()
    for word in tqdm(words[comm.rank :: comm.size], "words", leave=False, delay=1, disable=comm.rank != 0):
        table.add(word)
    table.finish()
    seconds, expected = comm.allreduce(time.perf_counter() - begin, MPI.MAX), Counter(map(key_of, words))
    found = dict(pair for part in comm.allgather(table.entries()) for pair in part)
    if comm.rank == 0:
        names = {key_of(word): word for word in words}
        most = ", ".join(f"{names[key]} {count}" for key, count in expected.most_common(5))
        print(f"Hash table: {len(words)} words, {len(expected)} different ones, on {comm.size} ranks, {comm.device}")
        print(f"  speed     {len(words) / seconds:.0f} words a second, one after the other on each rank")
        print(f"  most      {most}")
        print(f"  check     {'PASSED' if found == expected else 'FAILED'}", flush=True)
    table.free()
    return int(found != expected)


class Table:
    """A hash table of which each rank has `slots` entries in its GPU's memory."""

    def __init__(self, comm: Any, xp: Any, slots: int) -> None:
        self.comm, self.slots = comm, slots
        info = MPI.Info.Create({"pyncclx_memory": "device"})
        self.win = pyncclx.Win.Allocate(slots * ENTRY_NBYTES, 8, info, comm)
        info.Free()
        self.key, self.empty, self.old = (xp.zeros(1, "u8") for _ in range(3))
        self.one = xp.ones(1, "u8")
        self.win.Fence()
        self.win.Lock_all()

    def add(self, word: str) -> None:
        """Count a word."""
        key = key_of(word)
        rank, slot = key % self.comm.size, key // self.comm.size % self.slots
        self.key[...] = key
        for probe in range(self.slots):
            place = 2 * ((slot + probe) % self.slots)
            self.win.Compare_and_swap(self.key, self.empty, self.old, rank, place + KEY)
            self.win.Flush(rank)
            # The entry was empty, and is now this word's, or it was this word's already.
            if int(to_host(self.old)[0]) in (0, key):
                self.win.Fetch_and_op(self.one, self.old, rank, place + COUNT, MPI.SUM)
                return
        raise RuntimeError(f"all {self.slots} entries of rank {rank} are taken: give the table more")

    def finish(self) -> None:
        """Return when all ranks have counted all their words."""
        self.win.Unlock_all()
        self.win.Fence()

    def entries(self) -> list[tuple[int, int]]:
        """Return the keys and counts of this rank's entries."""
        rows = to_host(self.win.tomemory()).view("u8").reshape(-1, 2)
        return [(int(key), int(count)) for key, count in rows if key]

    def free(self) -> None:
        """Free the window."""
        self.win.Free()


def key_of(word: str) -> int:
    """Return a number for a word, not 0: two checksums of it."""
    data = word.encode()
    return (zlib.crc32(data) << 31 | zlib.adler32(data)) + 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    readme = Path(__file__).resolve().parents[2] / "README.md"
    parser.add_argument("file", nargs="?", type=Path, default=readme, help="a text (default: README.md)")
    parser.add_argument("--words", type=int, default=2000, metavar="N", help="at most (default 2000)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
