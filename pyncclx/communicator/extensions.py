"""Methods that MPI lacks: token shuffles, `Grow`, teams for a program's kernels."""

from __future__ import annotations

import operator
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from ..device.team import DeviceTeam
from ..team.base import IntraBase
from ..team.compare import compare
from ..tokens.over_nodes.shuffle import SpanningShuffle
from ..tokens.shuffle import TokenShuffle


class Extensions(IntraBase):
    """Methods that create objects and communicators for later operations."""

    @mpi_bootstrap.interrupts_deferred()
    def Create_token_shuffle(
        self,
        num_experts: int,
        capacity: int,
        hidden: int,
        dtype: Any = "bfloat16",
        *,
        k: int,
        max_tokens: int,
        rows_dtype: Any = None,
        layout: str = "expert",
        overflow: str = "raise",
        placement: Any = None,
        blocks: int | None = None,
    ) -> TokenShuffle:
        """Create a token shuffle, which moves tokens to their experts and results back.

        Collective.

        Parameters
        ----------
        num_experts, capacity, hidden, dtype, k, max_tokens, rows_dtype, layout, overflow, placement, blocks
            See `pyncclx.TokenShuffle`; equal on all ranks.

        Returns
        -------
        TokenShuffle

        Raises
        ------
        TypeError, ValueError, NotSupported, CollectiveMismatch
            On all ranks.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> with comm.Create_token_shuffle(
        ...     num_experts=4, capacity=64, hidden=16, k=2, max_tokens=8
        ... ) as shuffle:
        ...     print(shuffle.local_experts)
        [0, 1, 2, 3]
        """
        if self.checking:
            compare(self, "Create_token_shuffle")
        with self.state.recorded(self, "Create_token_shuffle"):
            kind = SpanningShuffle if self.node_topology.node_count > 1 else TokenShuffle
            options = rows_dtype, layout, overflow, placement, blocks
            return kind(self, num_experts, capacity, hidden, dtype, k, max_tokens, *options)

    def Grow(
        self, maxprocs: int, command: Any, args: Any = None, info: MPI.Info = MPI.INFO_NULL, root: int = 0
    ) -> Any:
        """Start processes, and return a communicator of these ranks and the new ones.

        The new ranks follow the old ones. The new processes get the same communicator with
        ``pyncclx.Communicator(MPI.Comm.Get_parent().Merge(True))``. Collective.

        Parameters
        ----------
        maxprocs, command, args, info, root
            The parameters of mpi4py's `Spawn`.

        Returns
        -------
        Intracomm

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> grown = comm.Grow(2, sys.executable, ["worker.py"])  # doctest: +SKIP
        """
        spawned = cast(Any, self).Spawn(command, args, maxprocs, info, root)
        try:
            return spawned.Merge(False)
        finally:
            MPI.Comm.Free(spawned)

    @mpi_bootstrap.interrupts_deferred()
    def device_team(self, signals: int = 64, blocks: int = 64, counters: int = 8) -> DeviceTeam:
        """Create the device team with which a program's own kernels communicate.

        The team is the first argument of the device functions in the header ``pyncclx.cuh`` (see `include_path`), and
        in `pyncclx.device` for Numba. Collective, with the same numbers on all ranks.

        Parameters
        ----------
        signals : int
            Number of 64-bit words of each rank that peers can set and kernels can wait for; their initial value is 0.
        blocks : int
            Number of blocks of the largest grid that uses barriers between ranks.
        counters : int
            Number of counters for barriers among the blocks of one kernel.

        Returns
        -------
        DeviceTeam
            Pass its `pointer` to kernels. It lasts until the communicator is freed. Kernels can reach all arrays that
            `Alloc` returned before their launch.

        Raises
        ------
        TypeError, ValueError
            On all ranks, if a number is not an integer, is negative, or differs between ranks.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> team = comm.device_team(signals=8, blocks=4)
        """
        if self.checking:
            compare(self, "device_team")
        with self.state.recorded(self, "device_team"):
            team, numbers = self.meet(lambda _: tuple(map(operator.index, (signals, blocks, counters))))
            everywhere = mpi_bootstrap.allgather_objects(self, numbers)
        if min(map(min, everywhere)) < 0 or len(set(everywhere)) > 1:
            of_ranks = "; ".join(f"rank {rank}: {theirs}" for rank, theirs in enumerate(everywhere))
            raise ValueError(
                "device_team: signals, blocks and counters are the same numbers on all ranks, none of them negative; "
                f"got {of_ranks}"
            )
        signals, blocks, counters = numbers
        return DeviceTeam(
            cast(MPI.Intracomm, self), team, signals=signals, blocks=blocks, counters=counters
        )
