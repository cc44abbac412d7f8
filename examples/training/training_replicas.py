"""Continue training without a lost replica: ranks keep copies of others' states.

A replica is all ranks with the same place in the grid's data dimension. ZeRO divides Adam's state among replicas, so a
death would lose a part of it. So after each step each rank copies its part to the next replica. When ranks die, the
ranks of complete replicas return to the last step that all of them have, and divide state and batch again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from mpi4py import MPI

import pyncclx
from training_trainer import Part, Trainer
from training_zero import KINDS, Tensor, shard

FAILURES = (pyncclx.RankFailed, pyncclx.Revoked)


class Kept(NamedTuple):
    """This rank's and the previous replica's state after some steps, and their places."""

    steps: int
    segments: list[range]
    replicas: int
    place: tuple[int, int, int]
    own: Tensor
    other: Tensor


class Replicas:
    """Keeps copies of states, and continues with the living replicas.

    Parameters
    ----------
    trainer : training_trainer.Trainer
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.ranks = trainer.tensor.size * trainer.pipe.size  # number of ranks in a replica
        self.kept: list[Kept] = []  # the last two, because some ranks may not have completed the last one
        self.keep()

    def keep(self) -> None:
        """Copy this rank's state to the next replica. Collective."""
        now, data = self.trainer, self.trainer.data
        before, after = (data.rank - 1) % data.size, (data.rank + 1) % data.size
        own = now.zero.state.clone()
        other = torch.empty((KINDS, now.zero.counts[before]), dtype=own.dtype, device=own.device)
        data.Sendrecv(own, after, 0, other, before, 0)
        data.synchronize()
        place = tuple(now.cart.coords)
        self.kept = [*self.kept[-1:], Kept(len(now.losses), now.segments, data.size, place, own, other)]

    def recover(self) -> bool:
        """Continue with the complete replicas; return False on other ranks. Collective."""
        now = self.trainer
        for group in (*now.groups, now.cart, now.comm):
            group.Revoke()  # a living rank that is not here yet may wait for another one
        living = now.comm.Shrink()
        now.free()
        now.comm.Free()
        steps = min(living.allgather(self.kept[-1].steps))
        kept = next(each for each in self.kept if each.steps == steps)
        ranks = Counter(replica for replica, _, _ in living.allgather(kept.place))
        whole = [replica for replica in range(kept.replicas) if ranks[replica] == self.ranks]
        comm = living.Split(0 if kept.place[0] in whole else MPI.UNDEFINED, living.rank)
        living.Free()
        if comm == MPI.COMM_NULL:
            return False
        self.restore(comm, kept, whole)
        return True

    def restore(self, comm: Any, kept: Kept, whole: list[int]) -> None:
        """Divide a kept state among the complete replicas. Collective over these."""
        now = self.trainer
        have = self.parts(kept, whole)
        now.arrange(comm, (len(whole), *now.options.grid[1:]))
        now.place(kept.segments)
        now.fill(have)
        del now.losses[kept.steps :]
        now.events.append((kept.steps, f"{kept.replicas - len(whole)} of {kept.replicas} replicas lost"))
        self.kept = []
        self.keep()

    def parts(self, kept: Kept, whole: list[int]) -> list[Part]:
        """Return the parts of the state that this rank contributes.

        These are its own part, and the other rank's part if that rank is lost.
        """
        replica, _, stage = kept.place
        lost = [each for each in range(kept.replicas) if each not in whole and (each + 1) % kept.replicas not in whole]
        if lost:
            raise SystemExit(f"the state of replicas {lost} is lost: those that kept it have died, too")
        held = [(replica, kept.own), ((replica - 1) % kept.replicas, kept.other)]
        parts = held if held[1][0] not in whole else held[:1]
        counts, segment = self.trainer.counts, kept.segments[stage]
        return [(shard(counts, segment, kept.replicas, each), state) for each, state in parts]
