"""Kernels of a program's own: `kernel` compiles CUDA C++ wherever this process runs, all else is for Numba's kernels.

``import pyncclx.device as d`` gives a Numba-CUDA kernel the functions of ``pyncclx.cuh``, which says what each does,
without the prefix: ``d.put_block(team, dest, source, nbytes, peer)``. Addresses are 64-bit integers; `d.address` gives
that of an array in a kernel, and ``d.pointer(address, numpy.float32)`` is indexed like an array. What C++ calls 0 and
1, they return as int32.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..backends import numba_code
from ..requests.open_receives import let_receives_leave
from ..system import paths
from ..team.streams import stream_for
from .team import DeviceTeam

if TYPE_CHECKING:
    from ..team.base import IntraBase

__all__ = ["Kernel", "kernel", "kernels"]

_TEAM, _PUT, _SIGNAL = "uint64", "uint64, uint64, uint64, uint64, int32", "uint32, uint64"
_RECEIVE = "uint64, uint64, uint64, uint64, uint32"
_SIGNATURES = {
    "rank": f"int32({_TEAM})",
    "size": f"int32({_TEAM})",
    "expect_size": f"int32({_TEAM}, int32)",
    "peer_pointer": f"uint64({_TEAM}, uint64, int32)",
    **{f"{way}_{who}": f"int32({_PUT})" for way in ("put", "get") for who in ("thread", "warp", "block")},
    **{f"put_signal_{who}": f"int32({_PUT}, {_SIGNAL})" for who in ("thread", "warp", "block")},
    **{f"copy_{who}": "void(uint64, uint64, uint64)" for who in ("thread", "warp", "block")},
    **{f"put_packets_{who}": f"int32({_PUT}, uint32)" for who in ("thread", "warp", "block")},
    **{f"receive_packets_{who}": f"int32({_RECEIVE})" for who in ("thread", "warp", "block")},
    **dict.fromkeys(("signal_set", "signal_add"), f"int32({_TEAM}, int32, {_SIGNAL})"),
    "signal_read": f"uint64({_TEAM}, uint32)",
    **dict.fromkeys(("wait_until", "wait_until_block"), f"int32({_TEAM}, {_SIGNAL})"),
    "barrier": f"int32({_TEAM})",
    **dict.fromkeys(("allgather_block", "alltoall_block"), f"int32({_TEAM}, uint64, uint64, uint64)"),
    **{f"allreduce_block_{kind}": f"int32({_TEAM}, uint64, uint64)" for kind in ("f32", "f64", "i32", "i64")},
    **dict.fromkeys(("barrier_among", "last_block", "grid_barrier"), f"int32({_TEAM}, uint32)"),
    **dict.fromkeys(("fence", "quiet"), "void()"),
    **{f"atomic_add_u{n}": f"uint{n}({_TEAM}, uint64, uint{n}, int32)" for n in (32, 64)},
    **{f"atomic_cas_u{n}": f"uint{n}({_TEAM}, uint64, uint{n}, uint{n}, int32)" for n in (32, 64)},
}


def __getattr__(name: str) -> Any:
    """A device function for Numba; it is declared, and the library compiled, at the first use."""
    if name == "address":
        return numba_code.address_function()
    if name == "pointer":
        return numba_code.pointer_function()
    if name not in _SIGNATURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return numba_code.device_function(f"pyncclx_{name}", _SIGNATURES[name])


class Kernel:
    """A kernel of the program's own, ready to launch; `kernel` makes it."""

    def __init__(self, device: backends.Device, function: Any, name: str) -> None:
        self._device, self._function, self.name = device, function, name

    def __repr__(self) -> str:
        return f"<pyncclx.device.Kernel {self.name}>"

    def __call__(self, grid: int, block: int, args: Sequence[Any], stream: Any = None) -> None:
        """Launch it.

        Parameters
        ----------
        grid, block : int
            Number of blocks, and of threads in each.
        args : sequence
            Device arrays, which become pointers; teams; NumPy scalars. Python's numbers take 8 bytes: int is for
            ``long long``, float for ``double``.
        stream : optional
            CuPy's current one if left out, or PyTorch's if there is a tensor. The kernel then waits for the producers
            of the arrays, as the communicator's calls do.

        Raises
        ------
        ValueError
            There is a team among the arguments, and the grid is larger than it was made for, or than what the GPU can
            run at once: a block that waits for one that cannot begin would wait for ever.
        TypeError, BufferError, MPI.Exception
            An argument is none of these; a host array; a team whose communicator has been freed.
        """
        buffers: list[Buffer] = []
        arguments = [self._packed(number, value, buffers) for number, value in enumerate(args)]
        for team in (value for value in args if isinstance(value, DeviceTeam)):
            self._check_grid(grid, block, team)
        stream = stream_for(self._device, tuple(buffers)) if stream is None else stream
        let_receives_leave()
        self._device.launch_arguments(self._function, grid, block, arguments, stream)

    def most_blocks(self, block: int, comm: IntraBase) -> int:
        """How many blocks of so many threads may wait for peers: what runs at once on a rank's part of a GPU.

        Ranks that share a GPU divide it. On the host device there is no limit. Collective at the first use of `comm`.
        """
        return self._most_blocks(block, comm.team.layout.sharing)

    def _most_blocks(self, block: int, sharing: int) -> int:
        return self._device.most_blocks(self._function, block) // sharing

    def _packed(self, number: int, value: Any, buffers: list[Buffer]) -> bytes:
        """An argument as the bytes of the parameter; arrays are added to `buffers`."""
        if isinstance(value, np.generic):
            return value.tobytes()
        if isinstance(value, DeviceTeam):
            return struct.pack("=Q", value.pointer)
        if isinstance(value, int):
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
    """Compile a kernel in CUDA C++ for this process' device: a GPU, or the host device.

    Call it on all ranks before any of them launches. The source may include ``pyncclx.cuh``. On the host device grids
    and blocks have one dimension, and shared memory is of fixed size. Multiplications and additions are not contracted,
    so that results are the same on both.

    Parameters
    ----------
    source : str or Path
        The program's text, or the path of a file (a text without a line break is one).
    name : str
        Of the kernel in it: ``extern "C"``, or a C++ name such as ``"scale<float>"``.

    Returns
    -------
    Kernel
        To be called with grid, block and arguments.

    Raises
    ------
    RuntimeError
        With the compiler's messages.
    """
    return kernels(source, name)[name]


def kernels(source: str | Path, *names: str) -> dict[str, Kernel]:
    """As `kernel`, several of one source: compiled at once, and returned by name."""
    device = backends.select()
    path = _saved(source) if isinstance(source, str) and "\n" in source else Path(source).resolve()
    loaded = device.load(device.compile(str(path), list(names)))
    return {name: Kernel(device, loaded[name], name) for name in names}


def _saved(text: str) -> Path:
    """A program's text as a file, which compilers and their cache go by."""
    path = paths.cache_directory() / f"kernel-{hashlib.sha256(text.encode()).hexdigest()[:24]}.cu"
    if not path.exists():
        paths.write(path, text.encode())
    return path
