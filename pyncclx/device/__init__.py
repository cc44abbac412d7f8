"""Kernels of a program's own that communicate: functions for Numba's kernels, and a compiler for CUDA C++.

``import pyncclx.device as d`` gives a Numba-CUDA kernel the functions of ``pyncclx.cuh`` without their prefix:
``d.put_block(team, dest, source, nbytes, peer)``. `kernel` and `kernels` compile CUDA C++, which has the same functions
as ``pyncclx_put_block`` and so on, and runs on the host device as well.

Functions take integers: `team` is ``comm.device_team().pointer``; `dest`, `source` and `address` are addresses of this
process (a peer's array is named by this rank's address of it); `nbytes` is in bytes, `count` in elements; `peer` is a
rank; `signal` and `counter` are numbers below those the team was made with; `epoch` is not 0; `partitions` is
``request.pointer`` of a partitioned message. Unless said otherwise
they return 1 (int32), or 0 after a failure, which the communicator's next call raises, or ``team.check()``. Names end
in who calls, all with the same arguments: a thread, a warp, or a block. ``pyncclx.cuh`` has what each orders.

==============================================================  =================================================
``rank(team)``, ``size(team)``                                  this rank; the number of ranks (0 after Free)
``expect_size(team, size)``                                     fails if there is another number of ranks
``peer_pointer(team, address, peer)``                           the peer's counterpart as mapped here (uint64), or 0
``put_*, get_*(team, dest, source, nbytes, peer)``              copy to a peer, or from it
``put_signal_*(…, peer, signal, value)``                        copy to a peer, then set a signal there
``copy_*(dest, source, nbytes)``                                copy between what is mapped here; returns nothing
``put_packets_*(team, dest, source, nbytes, peer, epoch)``      a short message into a peer's slot: no signal is needed
``receive_packets_*(team, dest, source, nbytes, epoch)``        wait for that message, and store it
``signal_set, signal_add(team, peer, signal, value)``           set a peer's signal, or add to it
``signal_read(team, signal)``                                   this rank's signal (uint64)
``wait_until, wait_until_block(team, signal, value)``           wait until this rank's signal has reached a value
``barrier(team)``, ``barrier_among(team, ranks)``               the blocks of one index meet; `ranks` has a bit for each
``allgather_block, alltoall_block(team, dest, source, nbytes)`` collectives of the blocks of one index
``allreduce_block_f32, _f64, _i32, _i64(team, array, count)``   sums in place, added in rank order
``last_block(team, counter)``                                   1 in the block of this grid that comes last
``grid_barrier(team, counter)``                                 all blocks of this grid meet
``pready_*(partitions, partition)``                             a partition of a partitioned message is written: send it
``parrived(partitions, partition)``                             1 if a partition has come, 0 if not
``await_partition, await_partition_block(partitions, partition)`` wait until one has come
``fence()``, ``quiet()``                                        order what came before and what follows; return nothing
``atomic_add_u32, _u64(team, address, value, peer)``            add to a peer's word, return it as it was
``atomic_cas_u32, _u64(team, address, expected, desired, peer)`` replace a peer's word if it is `expected`
``address(array)``                                              where an array begins (uint64)
``pointer(address, dtype)``                                     the elements at an address, to be indexed
==============================================================  =================================================

Each raises NotSupported where it is first looked up if Numba's CUDA target is missing.

Read the room in this order: `team` (the memory that kernels are given), `functions` (Numba's), `user_kernels` (C++).

Examples
--------
The blocks of each rank send a message to the next rank, and wait for that of the rank before (on GPUs)::

    @cuda.jit
    def pass_on(team, inbox, message, nbytes):
        following = (d.rank(team) + 1) % d.size(team)
        d.put_signal_block(team, inbox, message, nbytes, following, 0, 1)
        d.wait_until_block(team, 0, 1)
"""

from __future__ import annotations

from typing import Any

from . import functions
from .user_kernels import Kernel, kernel, kernels

__all__ = ["Kernel", "kernel", "kernels"]


def __getattr__(name: str) -> Any:
    return functions.function(name)
