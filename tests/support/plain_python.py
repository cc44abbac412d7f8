"""Run the kernels of pyncclx/numba_kernels as the Python functions that they are: a thread for each thread of a GPU.

What Numba and the device API give is imitated on memory of this process. Ranks go from call to call without meeting,
and what moves data waits a moment now and then, so that an exchange that relies on luck is found out.
"""

import contextlib
import ctypes
import importlib
import random
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np

import pyncclx
from pyncclx.numba_kernels import workspace

PACKAGE = "pyncclx.plain_numba_kernels"
WARP = 32
PATIENCE = 30.0  # seconds
PACKETS_NBYTES, CHUNKS_NBYTES = 1024, 4096  # less than on GPUs, so that short messages take several turns


class Machine:
    """Ranks with a workspace each, and what is common to the threads of a call."""

    def __init__(self, size, blocks, threads):
        self.size, self.blocks, self.threads = size, blocks, threads
        self.spaces = [np.zeros(workspace.NBYTES, "u1") for _ in range(size)]
        self.signals = [[0] * (blocks * size) for _ in range(size)]
        self.here = threading.local()
        self.overflows = []
        self.failed = threading.Event()

    def call(self, kernel_of, arguments):
        """`kernel_of(rank)` by all threads of all ranks, some calls one after the other: `arguments[call][rank]`."""
        block_of = {(r, b): Block(self.threads) for r in range(self.size) for b in range(self.blocks)}
        who = [(r, b, t) for r, b in block_of for t in range(self.threads)]
        threads = [threading.Thread(target=self._run, args=(kernel_of, arguments, block_of, *each)) for each in who]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed.is_set():
            raise RuntimeError("a thread failed, see above")

    def _run(self, kernel_of, arguments, block_of, rank, block, thread):
        here = self.here
        here.rank, here.index, here.thread, here.block = rank, block, thread, block_of[rank, block]
        try:
            for call, each in enumerate(arguments):
                here.call, here.arrays = call, 0
                words = [*each[rank], *[0] * 16]
                kernel_of(call)(rank, self.spaces[rank].ctypes.data, words, call)
                here.block.all.wait(PATIENCE)
        except BaseException:
            self.failed.set()
            for each in block_of.values():
                each.all.abort()
            raise

    def at_peer(self, address, peer):
        """The peer's counterpart of an address in this rank's workspace."""
        offset = int(address) - self.spaces[self.here.rank].ctypes.data
        assert 0 <= offset < workspace.NBYTES
        return self.spaces[peer].ctypes.data + offset

    def wait(self, ready):
        """Until something is so."""
        end = time.monotonic() + PATIENCE
        while not ready():
            if self.failed.is_set() or time.monotonic() > end:
                raise TimeoutError("waited in vain")
            time.sleep(0)


class Block:
    """What the threads of a block share."""

    def __init__(self, threads):
        self.all = threading.Barrier(threads)
        self.warps = [threading.Barrier(WARP) for _ in range(threads // WARP)]
        self.shared, self.votes, self.lock = {}, {}, threading.Lock()


class Pointer:
    """Elements at an address."""

    def __init__(self, address, dtype):
        self.address, self.dtype = int(address), np.dtype(dtype)

    def _element(self, i):
        at = self.address + int(i) * self.dtype.itemsize
        return np.frombuffer((ctypes.c_char * self.dtype.itemsize).from_address(at), self.dtype)

    def __getitem__(self, i):
        value = self._element(i)[0]
        return int(value) if self.dtype.kind in "iu" else value

    def __setitem__(self, i, value):
        wrapped = int(value) % (1 << 64) if self.dtype.kind in "iu" else value
        self._element(i)[0] = np.uint64(wrapped).astype(self.dtype) if self.dtype.kind in "iu" else wrapped


class Cuda:
    """What the kernels use of numba.cuda."""

    def __init__(self, machine):
        self._machine, self._here = machine, machine.here
        self.blockDim, self.gridDim = types.SimpleNamespace(x=machine.threads), types.SimpleNamespace(x=machine.blocks)
        self.shared = types.SimpleNamespace(array=self._shared_array)
        self.local = types.SimpleNamespace(array=np.empty)

    threadIdx = property(lambda self: types.SimpleNamespace(x=self._here.thread))
    blockIdx = property(lambda self: types.SimpleNamespace(x=self._here.index))

    def jit(self, function, **options):
        return function

    def syncthreads(self):
        self._here.block.all.wait(PATIENCE)

    def syncthreads_and(self, vote):
        """A barrier on both sides of the votes: no thread reads before all are cast, or votes before all have read."""
        block = self._here.block
        block.votes[self._here.thread] = bool(vote)
        block.all.wait(PATIENCE)
        unanimous = all(block.votes.values())
        block.all.wait(PATIENCE)
        return int(unanimous)

    def _shared_array(self, shape, dtype):
        here = self._here
        here.arrays += 1
        with here.block.lock:
            return here.block.shared.setdefault((here.call, here.arrays), np.full(shape, 0x55, np.dtype(dtype)))


class Device:
    """What the kernels use of pyncclx.device. A team is the rank's number."""

    def __init__(self, machine):
        self._machine, self._here = machine, machine.here

    def rank(self, team):
        return team

    def size(self, team):
        return self._machine.size

    def pointer(self, address, dtype):
        return Pointer(address, dtype)

    def address(self, array):
        return array.ctypes.data

    def fence(self):
        pass

    def _copy(self, to, source, nbytes):
        if random.random() < 0.2:
            time.sleep(random.random() * 1e-3)
        ctypes.memmove(int(to), int(source), int(nbytes))

    def _by_block(self, work):
        """Done by one thread; as on a GPU, threads do not meet."""
        if self._here.thread == 0:
            work()
        return 1

    def put_block(self, team, dest, source, nbytes, peer):
        return self._by_block(lambda: self._copy(self._machine.at_peer(dest, peer), source, nbytes))

    def copy_block(self, dest, source, nbytes):
        self._by_block(lambda: self._copy(dest, source, nbytes))

    def signal_set(self, team, peer, signal, value):
        self._machine.signals[peer][signal] = value
        return 1

    def wait_until(self, team, signal, value):
        mine = self._machine.signals[team]
        self._machine.wait(lambda: mine[signal] >= value)
        return 1

    def barrier(self, team):
        raise NotImplementedError("nothing but this call is in the kernel that makes it")

    def put_packets_warp(self, team, dest, source, nbytes, peer, epoch):
        if self._here.thread % WARP == 0 and nbytes > 0:
            message = np.zeros((-(-nbytes // 16), 4), "u4")
            self._copy(message.ctypes.data, source, nbytes)
            packets = np.empty((message.size, 2), "u4")
            packets[:, 0], packets[:, 1] = message.reshape(-1), epoch & 0xFFFFFFFF
            half = len(packets) // 2 * 8  # the second half may be there first
            to, begin = self._machine.at_peer(dest, peer), packets.ctypes.data
            self._copy(to + half, begin + half, packets.nbytes - half)
            self._copy(to, begin, half)
        return 1

    def receive_packets_warp(self, team, dest, source, nbytes, epoch):
        if self._here.thread % WARP == 0 and nbytes > 0:
            length = -(-int(nbytes) // 16) * 4
            slot = np.frombuffer((ctypes.c_char * (length * 8)).from_address(int(source)), "u4").reshape(length, 2)
            flags = slot[:, 1]
            self._machine.wait(lambda: bool((flags == epoch & 0xFFFFFFFF).all()))
            message = slot[:, 0].copy()
            self._copy(dest, message.ctypes.data, nbytes)
        self._here.block.warps[self._here.thread // WARP].wait(PATIENCE)
        return 1


def _import(name):
    return importlib.import_module(f"{PACKAGE}.{name}")


@contextlib.contextmanager
def kernels_of(machine):
    """Import the kernels' files with the imitations in the place of Numba and the device API: ``module(name)``."""
    cuda, device = Cuda(machine), Device(machine)
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(Path(workspace.__file__).parent)]
    fakes = {"pyncclx.device": device, PACKAGE: package}
    numba_cuda = importlib.import_module("pyncclx.backends.compilers.numba_cuda")
    kept = {name: sys.modules.get(name) for name in fakes}
    device_of_package, target = pyncclx.__dict__.get("device"), numba_cuda.target
    declare = numba_cuda.device_function

    def overflow(call, kind, rank, wanted, capacity):
        machine.overflows.append((machine.here.rank, kind, rank, wanted, capacity))
        return 1

    sys.modules.update(fakes)
    slots = _import("workspace")
    slots.PACKETS_NBYTES, slots.CHUNKS_NBYTES = PACKETS_NBYTES, CHUNKS_NBYTES
    pyncclx.device = device
    numba_cuda.target = lambda: cuda
    numba_cuda.device_function = lambda symbol, signature, library: overflow
    try:
        yield _import
    finally:
        numba_cuda.target, numba_cuda.device_function = target, declare
        if device_of_package is None:
            del pyncclx.device
        else:
            pyncclx.device = device_of_package
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
        for name, module in kept.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
