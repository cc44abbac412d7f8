"""User kernels that communicate: functions for Numba, and a compiler for CUDA C++.

``import pyncclx.device as d`` gives a Numba-CUDA kernel the functions of ``pyncclx.cuh`` without their prefix:
``d.put_block(team, dest, source, nbytes, peer)``. `kernel` and `kernels` compile CUDA C++, which has the same functions
as ``pyncclx_put_block`` and so on, and runs on the host device as well.

Functions take integers: `team` is ``comm.device_team().pointer``; `dest`, `source` and `address` are addresses of this
process (name a peer's array by this rank's address of it); `nbytes` is in bytes, `count` in elements; `peer` is a rank;
`signal` and `counter` are numbers below those that the team was made with; `epoch` is not 0; `partitions` is
``request.pointer`` of a partitioned message. Unless the table says otherwise, functions return 1 (int32), or 0 after a
failure, which the communicator's next call or ``team.check()`` raises. The suffix of a name says which threads call the
function together, with the same arguments: one thread, a warp, or a block. ``pyncclx.cuh`` says what each function
orders.

==============================================================  =================================================
``rank(team)``, ``size(team)``                                  this rank; the number of ranks (0 after Free)
``expect_size(team, size)``                                     fail if the number of ranks differs
``peer_pointer(team, address, peer)``                           the peer's counterpart, as mapped here (uint64), or 0
``put_*, get_*(team, dest, source, nbytes, peer)``              copy to a peer, or from it
``put_signal_*(…, peer, signal, value)``                        copy to a peer, then set a signal there
``copy_*(dest, source, nbytes)``                                copy between mapped addresses; return nothing
``put_packets_*(team, dest, source, nbytes, peer, epoch)``      a short message into a peer's slot: no signal is needed
``receive_packets_*(team, dest, source, nbytes, epoch)``        wait for that message, and store it
``signal_set, signal_add(team, peer, signal, value)``           set a peer's signal, or add to it
``signal_read(team, signal)``                                   this rank's signal (uint64)
``wait_until, wait_until_block(team, signal, value)``           wait until this rank's signal has reached a value
``barrier(team)``, ``barrier_among(team, ranks)``               barrier of blocks of one index; `ranks` is a bit mask
``allgather_block, alltoall_block(team, dest, source, nbytes)`` collectives of the blocks of one index
``allreduce_block_f32, _f64, _i32, _i64(team, array, count)``   sums in place, added in rank order
``last_block(team, counter)``                                   1 in the last block of this grid to call it
``grid_barrier(team, counter)``                                 barrier of all blocks of this grid
``pready_*(partitions, partition)``                             send a partition, which has been written, of a message
``parrived(partitions, partition)``                             1 if a partition has arrived, else 0
``await_partition, await_partition_block(partitions, partition)`` wait until it has arrived
``fence()``, ``quiet()``                                        order accesses before and after; return nothing
``atomic_add_u32, _u64(team, address, value, peer)``            add to a peer's word; return its old value
``atomic_cas_u32, _u64(team, address, expected, desired, peer)`` replace a peer's word if it is `expected`
``address(array)``                                              the address of an array (uint64)
``pointer(address, dtype)``                                     the elements at an address, for indexing
==============================================================  =================================================

The first use of a function raises NotSupported if Numba's CUDA target is missing.

Read the package in this order: `team` (the memory of a team), `functions` (Numba's), `user_kernels` (C++).

Examples
--------
The blocks of each rank send a message to the next rank, and wait for the previous rank's message (on GPUs)::

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
