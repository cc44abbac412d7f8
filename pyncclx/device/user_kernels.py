"""User kernels in CUDA C++: compile them for a GPU or the host device, and launch."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..backends.compilers import cache
from ..requests.open_receives import let_receives_leave
from ..system.cache_folders import cache_directory
from ..system.notes import reported_if_long
from ..team.base import IntraBase
from ..team.streams import stream_for
from .team import DeviceTeam


class Kernel:
    """A user kernel that is ready to launch; `kernel` and `kernels` make it.

    Attributes
    ----------
    name : str
        The name given to `kernel`.
    """

    def __init__(self, device: backends.Device, function: Any, name: str) -> None:
        self._device, self._function, self.name = device, function, name

    def __repr__(self) -> str:
        return f"<pyncclx.device.Kernel {self.name}>"

    def __call__(self, grid: int, block: int, args: Sequence[Any], stream: Any = None) -> None:
        """Launch the kernel.

        Parameters
        ----------
        grid, block : int
            Number of blocks, and number of threads in each.
        args : sequence
            Device arrays, which are passed as pointers; teams; NumPy scalars. Python numbers take 8 bytes: int is for
            ``long long``, float for ``double``.
        stream : optional
            By default CuPy's current stream, or PyTorch's if there is a tensor. The kernel then waits for the producers
            of the arrays, as the communicator's calls do.

        Raises
        ------
        ValueError
            If the arguments include a team, and the grid is larger than the team was made for, or than the GPU can run
            at once. A block could otherwise wait forever for one that cannot start.
        TypeError, BufferError, MPI.Exception
            An argument is of an unsupported type, or is a host array, or is a team whose communicator has been freed.
        """
        buffers: list[Buffer] = []
        arguments = [self._packed(number, value, buffers) for number, value in enumerate(args)]
        for team in (value for value in args if isinstance(value, DeviceTeam)):
            self._check_grid(grid, block, team)
        stream = stream_for(self._device, tuple(buffers)) if stream is None else stream
        let_receives_leave()
        self._device.launch_arguments(self._function, grid, block, arguments, stream)

    def most_blocks(self, block: int, comm: IntraBase) -> int:
        """Return how many blocks may wait for peers: as many as the GPU runs at once.

        Ranks that share a GPU divide this number. On the host device there is no limit. Collective at the first use of
        `comm`.

        Parameters
        ----------
        block : int
            Threads of each block.
        comm : Intracomm
            The communicator whose ranks the blocks wait for.

        Returns
        -------
        int
        """
        return self._most_blocks(block, comm.team.layout.sharing)

    def _most_blocks(self, block: int, sharing: int) -> int:
        return self._device.most_blocks(self._function, block) // sharing

    def _packed(self, number: int, value: Any, buffers: list[Buffer]) -> bytes:
        """Return the bytes of a parameter; add an array to `buffers`."""
        if isinstance(value, np.generic):
            return value.tobytes()
        if isinstance(value, DeviceTeam):
            return struct.pack("=Q", value.pointer)
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 64:
                raise ValueError(f"{self.name}: argument {number} is {value}; an integer has 64 bits in a kernel")
            return struct.pack("=q" if value < 1 << 63 else "=Q", value)
        if isinstance(value, float):
            return struct.pack("=d", value)
        buffers.append(resolve(value, f"{self.name}: argument {number}", writable=False, device=self._device))
        return struct.pack("=Q", buffers[-1].address)

    def _check_grid(self, grid: int, block: int, team: DeviceTeam) -> None:
        most = self._most_blocks(block, team.sharing)
        if grid > team.blocks:
            raise ValueError(
                f"{self.name}: a grid of {grid} blocks, the team was made for {team.blocks}; make it with "
                "comm.device_team(blocks=...), or launch fewer blocks"
            )
        if grid > most:
            raise ValueError(
                f"{self.name}: a grid of {grid} blocks of {block} threads, the GPU can run {most} at once for "
                "a rank, and one that waits may wait for one that has not begun; launch fewer"
            )


def kernel(source: str | Path, name: str) -> Kernel:
    """Compile a kernel in CUDA C++ for this process's device.

    The device is a GPU or the host device. Call it on all ranks before any of them launches. The source may include
    ``pyncclx.cuh``. On the host device grids and blocks have one dimension, and shared memory has a fixed size.
    Multiplications and additions are not contracted, so results are the same on both devices.

    Parameters
    ----------
    source : str or Path
        The program's text, or the path of a file. A text without a line break is a path.
    name : str
        Name of the kernel in it: ``extern "C"``, or a C++ name such as ``"scale<float>"``.

    Returns
    -------
    Kernel
        Call it with grid, block and arguments.

    Raises
    ------
    RuntimeError
        The compiler failed; the error contains its messages.

    Examples
    --------
    >>> import pyncclx.device as d
    >>> double = d.kernel('''
    ... #include "pyncclx.cuh"
    ... extern "C" __global__ void twice(float* x, long long n) {
    ...     for (long long i = threadIdx.x; i < n; i += blockDim.x) x[i] *= 2;
    ... }''', "twice")
    >>> x = np.ones(5, "f4")
    >>> double(1, 128, [x, x.size])
    """
    return kernels(source, name)[name]


def kernels(source: str | Path, *names: str) -> dict[str, Kernel]:
    """Compile several kernels of one source at once; see `kernel`.

    Parameters
    ----------
    source : str or Path
    *names : str

    Returns
    -------
    dict of str to Kernel
        By name.

    Raises
    ------
    RuntimeError
        The compiler failed; the error contains its messages.

    Examples
    --------
    >>> import pyncclx.device as d
    >>> made = d.kernels('''
    ... extern "C" __global__ void one(int* x) { *x = 1; }
    ... extern "C" __global__ void two(int* x) { *x = 2; }''', "one", "two")
    >>> sorted(made)
    ['one', 'two']
    """
    device = backends.select()
    path = _saved(source) if isinstance(source, str) and "\n" in source else Path(source).resolve()
    what, reports = f"{', '.join(names)} for {device.architecture}", MPI.COMM_WORLD.rank == 0
    with reported_if_long(what, cache_directory, reports=reports):
        image = device.compile(str(path), names)
    loaded = device.load(image)
    return {name: Kernel(device, loaded[name], name) for name in names}


def _saved(text: str) -> Path:
    """Write a program's text to a cached file, for the compiler and its cache."""
    path = cache_directory() / f"kernel-{hashlib.sha256(text.encode()).hexdigest()[:24]}.cu"
    if not path.exists() or path.read_text() != text:
        cache.write(path, text.encode())
    return path
