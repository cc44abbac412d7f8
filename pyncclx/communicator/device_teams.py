"""Making teams for a program's own kernels."""

from __future__ import annotations

import operator
from typing import cast

from mpi4py import MPI

from ..device.team import DeviceTeam
from ..team.base import IntraBase


class DeviceTeams(IntraBase):
    """The method that makes teams for a program's own kernels."""

    def device_team(self, signals: int = 64, blocks: int = 64, counters: int = 8) -> DeviceTeam:
        """Make what a program's own kernels need to communicate: the first argument of the device functions.

        They are in the header ``pyncclx.cuh`` (see `include_path`), and for Numba in `pyncclx.device`. Collective,
        with the same numbers on all ranks.

        Parameters
        ----------
        signals : int
            64-bit words of each rank that its peers can set, and that its kernels can wait for; 0 at first.
        blocks : int
            The largest grid whose blocks use barriers between ranks.
        counters : int
            Of the blocks of a grid that meet in one kernel.

        Returns
        -------
        DeviceTeam
            Its `pointer` is for kernels. It lasts until the communicator is freed. Kernels know of all arrays that
            `Alloc` gave before they are launched.

        Raises
        ------
        ValueError
            On all ranks: a number is negative, or not the same everywhere.
        """
        wanted = tuple(operator.index(number) for number in (signals, blocks, counters))
        everywhere = MPI.Comm.allgather(self, wanted)
        if min(map(min, everywhere)) < 0 or len(set(everywhere)) > 1:
            said = "; ".join(f"rank {rank}: {numbers}" for rank, numbers in enumerate(everywhere))
            raise ValueError(
                "device_team: signals, blocks and counters are the same numbers on all ranks, none of them negative; "
                f"got {said}"
            )
        signals, blocks, counters = wanted
        return DeviceTeam(cast(MPI.Intracomm, self), self.team, signals, blocks, counters)
