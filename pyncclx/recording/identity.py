"""Identity of a communicator on all ranks, without communication.

It consists of the COMM_WORLD ranks of the processes, and a number that distinguishes communicators of the same
processes.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from mpi_bootstrap.groups import ranks_in_world

from ..system.process import held

# Entries list only some ranks of a larger communicator.
MOST_LISTED = 1024

_made: Counter[tuple[str, Sequence[int], Sequence[int]]] = held(Counter())


class Identity(NamedTuple):
    """Identity of a communicator or a window.

    Attributes
    ----------
    kind : str
        "comm" or "win".
    world : range, or tuple of int
        Ranks of its processes in MPI.COMM_WORLD; MPI.UNDEFINED for processes of another world. Ranks that are equally
        far apart are a range, which takes no memory for each rank.
    remote : range, or tuple of int
        Ranks of an intercommunicator's other group.
    number : int
        Number of earlier communicators, or windows, with the same processes. It is equal on all ranks, because creating
        one is collective.
    """

    kind: str
    world: Sequence[int]
    remote: Sequence[int]
    number: int

    def another(self) -> Identity:
        """Return the identity of the next object that the same processes create."""
        return _numbered(self.kind, self.world, self.remote)

    def text(self, name: str, rank: int) -> str:
        """Return the identity as JSON, with the program's name and this process's rank."""
        fields = {"kind": self.kind, "number": self.number, "name": name, "rank": rank, "size": len(self.world)}
        ranks = {"world": list(self.world[:MOST_LISTED])}
        ranks |= {"remote": list(self.remote[:MOST_LISTED])} if self.remote else {}
        return json.dumps(fields | ranks)


def identity_of(comm: MPI.Comm) -> Identity:
    """Return the identity of a communicator that is created or first used now."""
    remote = compact(ranks_in_world(comm.Get_remote_group())) if isinstance(comm, MPI.Intercomm) else ()
    return _numbered("comm", compact(ranks_in_world(comm.Get_group())), remote)


def identity_of_window(win: MPI.Win) -> Identity:
    """Return the identity of a window that is created or first used now."""
    return _numbered("win", compact(ranks_in_world(win.Get_group())), ())


def _numbered(kind: str, world: Sequence[int], remote: Sequence[int]) -> Identity:
    key = kind, world, remote
    number = _made[key]
    _made[key] += 1
    return Identity(*key, number)


def compact(ranks: Sequence[int]) -> Sequence[int]:
    """Return ranks as a range if they are equally far apart."""
    if not ranks or isinstance(ranks, range):
        return ranks
    first, step = ranks[0], ranks[1] - ranks[0] if len(ranks) > 1 else 1
    equally_far = range(first, first + step * len(ranks), step) if step else ranks
    return equally_far if all(map(operator.eq, ranks, equally_far)) else ranks
