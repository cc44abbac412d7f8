"""Kernels in Numba on the device API: compiled without a GPU in tests/host/device, run in tests/ranks/device."""

import numpy as np
from numba import cuda

import pyncclx.device as d


def ring(team, inbox, rows, taken, failed, rounds, first):
    """Rows travel round the ring of ranks, as in ranks/device_api.cu."""
    me, size, nbytes = d.rank(team), d.size(team), inbox.size
    following, previous = (me + 1) % size, (me + size - 1) % size
    for number in range(rounds):
        turn = first + number
        ok = d.wait_until_block(team, 1, turn)
        source = d.address(rows) + number * nbytes
        ok &= d.put_signal_block(team, d.address(inbox), source, nbytes, following, 0, turn + 1)
        ok &= d.wait_until_block(team, 0, turn + 1)
        for i in range(cuda.threadIdx.x, nbytes, cuda.blockDim.x):
            taken[number, i] = inbox[i]
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            ok &= d.signal_set(team, previous, 1, turn + 1)
        if not ok:
            failed[0] = 1


def pass_partitions(send, receive, x, y, taken, first, failed):
    """Each block makes a partition of `x`, a row, and sends it; it awaits that of `y`, and copies it to `taken`."""
    partition = cuda.blockIdx.x
    for i in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        x[partition, i] = first + partition * x.shape[1] + i
    if not d.pready_block(send, partition) or not d.await_partition_block(receive, partition):
        failed[0] = 1
    for i in range(cuda.threadIdx.x, y.shape[1], cuda.blockDim.x):
        taken[partition, i] = y[partition, i]


def everything(team, words, source, results):
    """Every function, by all ranks alike on memory of their own; `results` become 1."""
    me, here, there = d.rank(team), d.address(words), d.address(source)
    first = cuda.threadIdx.x == 0
    ok = d.expect_size(team, d.size(team)) and d.peer_pointer(team, here, me) == here
    ok &= d.put_block(team, here, there, 128, me) & d.get_block(team, here + 128, there, 128, me)
    if cuda.threadIdx.x < 32:
        ok &= d.put_warp(team, here + 256, there, 8, me) & d.get_warp(team, here + 264, there + 8, 8, me)
        ok &= d.put_signal_warp(team, here + 272, there + 16, 8, me, 0, 1)
        ok &= d.put_packets_warp(team, here + 352, there + 16, 8, me, 9)
        ok &= d.receive_packets_warp(team, here + 432, here + 352, 8, 9)
        d.copy_warp(here + 440, there + 24, 8)
    if first:
        ok &= d.put_thread(team, here + 280, there + 24, 8, me) & d.get_thread(team, here + 288, there + 32, 8, me)
        ok &= d.put_signal_thread(team, here + 296, there + 40, 8, me, 1, 1)
        ok &= d.put_packets_thread(team, here + 384, there + 32, 8, me, 9)
        ok &= d.receive_packets_thread(team, here + 448, here + 384, 8, 9)
        d.copy_thread(here + 456, there + 40, 8)
    ok &= d.put_signal_block(team, here + 304, there + 48, 16, me, 2, 1)
    ok &= d.put_packets_block(team, here + 320, there, 8, me, 9)
    ok &= d.receive_packets_block(team, here + 416, here + 320, 8, 9)
    d.copy_block(here + 424, there + 8, 8)
    ok &= d.wait_until_block(team, 0, 1) & d.wait_until_block(team, 1, 1) & d.wait_until_block(team, 2, 1)
    ok &= d.alltoall_block(team, here + 464, there, 8) & d.allgather_block(team, here + 464, there, 8)
    ok &= d.allreduce_block_i64(team, here + 472, 0) & d.allreduce_block_i32(team, here + 472, 0)
    ok &= d.allreduce_block_f64(team, here + 472, 0) & d.allreduce_block_f32(team, here + 472, 0)
    ok &= d.pready_block(0, 1) & d.await_partition_block(0, 1)  # of a message to nobody
    if cuda.threadIdx.x < 32:
        ok &= d.pready_warp(0, 1) & d.pready_thread(0, 1) & d.await_partition(0, 1) & d.parrived(0, 1)
    d.fence()
    ok &= d.barrier(team) & d.barrier_among(team, 0xFFFF) & d.grid_barrier(team, 0) & d.last_block(team, 1)
    if first:
        for i in range(32):
            results[i] = ok and words[i] == i % 16
        for i in range(8):
            results[32 + i] = words[32 + i] == i
        copied = d.pointer(here + 416, np.uint64)
        for i in range(6):
            results[32 + i] &= copied[i] == i
        ok = d.signal_set(team, me, 3, 5) & d.signal_add(team, me, 3, 2) & d.wait_until(team, 3, 7)
        d.quiet()
        results[0] &= ok and d.signal_read(team, 3) == 7
        results[1] &= d.atomic_add_u64(team, here, 5, me) == 0 and d.atomic_cas_u64(team, here, 5, 9, me) == 5
        results[2] &= d.atomic_add_u32(team, here, 1, me) == 9 and d.atomic_cas_u32(team, here, 3, 0, me) == 10
