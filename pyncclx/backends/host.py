"""The emulator as a device: g++ compiles the kernels, CPU threads run them (``cuda/host/emulator.h``).

Environment: ``PYNCCLX_SEED`` (not 0: resume the threads of a block in random order, reproducibly),
``PYNCCLX_HOSTILE=1`` (delay and reorder stores to peers as the GPU memory model allows).
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import NotSupported
from ..system import paths, settings
from . import gxx, numba_code
from .exported import Exported
from .host_kernels import Kernel, Launch
from .host_memory import Event, Memory, Repeated, Temporary, Upload, Watch


class Device:
    """The CPU as a device with two channels; fulfils `pyncclx.backends.Device`.

    Parameters
    ----------
    seed
        Not 0: the emulator permutes the threads of a block, another way at each launch.
        None: ``PYNCCLX_SEED``.
    hostile
        Whether stores to peers are delayed and reordered. None: ``PYNCCLX_HOSTILE``.
    watchdog_s
        A block that makes no progress for so many seconds fails the launch.
    """

    name = "host"
    kind = "host device"
    ordinal = 0
    at_once = True
    dealt = 1
    architecture = "host"
    max_channels = 2
    most_channels = 64
    threads = 64
    nvlinked: frozenset[str] | None = None
    compiles_whole_files = True

    def __init__(self, *, seed: int | None = None, hostile: bool | None = None, watchdog_s: float = 3600.0) -> None:
        self.identity = f"host-{socket.gethostname()}-{os.getpid()}"
        self.seed = settings.SEED.get() if seed is None else seed
        self.hostile = settings.HOSTILE.get() if hostile is None else hostile
        self.watchdog_s = watchdog_s
        self._launches = 0
        self._exported: list[Memory] = []

    def allocate_shared(self, nbytes: int) -> Memory:
        """Allocate zeroed memory that other processes can map."""
        fd = os.memfd_create("pyncclx")
        try:
            os.ftruncate(fd, nbytes)
            return Memory(fd, nbytes, owns_fd=True)
        except BaseException:
            os.close(fd)
            raise

    def map_peer(self, handle: int | bytes, nbytes: int) -> Memory:
        """Map another process' memory by its descriptor, which is closed."""
        if isinstance(handle, bytes):
            raise NotSupported("host memory travels by descriptor; CUDA IPC handles belong to GPUs")
        try:
            return Memory(handle, nbytes)
        finally:
            os.close(handle)

    def allocate_watch(self, nbytes: int) -> Watch:
        """Allocate zeroed memory for abort requests and error records."""
        return Watch(nbytes)

    def owner(self, memory: Memory) -> Memory:
        """Return the memory itself."""
        return memory

    def array(self, owner: Memory, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return memory of this process as a NumPy array."""
        return owner.array(shape, dtype)

    def peer_array(self, peer: Memory, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return a peer's memory as a NumPy array, for as long as it is mapped."""
        return peer.array(shape, dtype)

    def upload(self, data: bytes) -> Upload:
        """Keep a copy of some bytes."""
        return Upload(data)

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Zero memory."""
        ctypes.memset(address, 0, nbytes)

    def synchronize(self, stream: object = None) -> None:
        """Do nothing: a launch returns when it is done."""

    def compile(self, file: str, instantiations: Sequence[str]) -> bytes:
        """Compile kernels into a shared library in the cache.

        Parameters
        ----------
        file
            The source, relative to the CUDA folder (an absolute path is taken as it is).
        instantiations
            Kernels as C++ expressions, as in ``"allreduce<float, Sum>"``.

        Returns
        -------
        bytes
            The library's path.

        Raises
        ------
        NotSupported
            Without g++.
        RuntimeError
            If g++ refuses the source; the text has its messages.
        """
        return os.fsencode(gxx.compile_cached(paths.CUDA_DIR / file, instantiations))

    def load(self, image: bytes) -> dict[str, Kernel]:
        """Load a compiled library; returns its kernels by instantiation."""
        library = ctypes.CDLL(os.fsdecode(image))
        names = ctypes.c_char_p.in_dll(library, "pyncclx_kernels").value or b""
        numbered = enumerate(names.decode().split("\n"))
        return {name: Kernel(library, f"kernel_{i}", name) for i, name in numbered}

    def compile_linked(self, file: str, instantiations: Sequence[str], fn: Any, dtype: Any) -> bytes:
        """Compile kernels that call an operator, which `load_linked` gives them."""
        return self.compile(file, instantiations)

    def load_linked(self, image: bytes, fn: Any, dtype: Any) -> dict[str, Kernel]:
        """Load a copy of a compiled library, for one operator alone, which Numba compiles here."""
        library = Path(os.fsdecode(image))
        with tempfile.NamedTemporaryFile(dir=library.parent, suffix=".so") as copy:
            copy.write(library.read_bytes())
            copy.flush()
            kernels = self.load(os.fsencode(copy.name))
        operator = numba_code.for_host(fn, dtype)
        for kernel in kernels.values():
            kernel.set_operator(numba_code.symbol_of(dtype), operator)
        return kernels

    def launch(
        self, function: Kernel, grid: int, block: int, parameters: bytes, stream: object, early: bool = False
    ) -> None:
        """Run a kernel; returns when it is done. Other Python threads run meanwhile.

        Raises
        ------
        ValueError
            If `parameters` is not of the size of the kernel's parameter.
        RuntimeError
            If the kernel is stuck, in a deadlock, or does what a GPU refuses; the text says what.
        """
        self.launch_arguments(function, grid, block, [parameters], stream)

    def launch_arguments(
        self, function: Kernel, grid: int, block: int, arguments: Sequence[bytes], stream: object
    ) -> None:
        """The same for a kernel with any number of parameters."""
        sizes = [len(argument) for argument in arguments]
        if sizes != function.parameters:
            wanted = f"takes parameters of {function.parameters} bytes, got {sizes}"
            raise ValueError(f"{function.name} {wanted}; numbers of other sizes are NumPy's, as np.int32(n)")
        self._launches += 1
        seed = self.seed + self._launches if self.seed else 0
        how = Launch(grid, block, 0, self.hostile, seed, self.watchdog_s)
        pointers = (ctypes.c_char_p * len(arguments))(*map(bytes, arguments))
        if function.run(ctypes.byref(how), pointers) != 0:
            raise RuntimeError(function.error().decode())

    def repeated(
        self, function: Kernel, grid: int, block: int, parameters: bytes, event: Event | None = None
    ) -> Repeated:
        """Return a launch to be made again and again."""
        return Repeated(functools.partial(self.launch, function, grid, block, parameters))

    def together(self, several: Sequence[Repeated]) -> Repeated:
        """Return what makes the launches of several."""

        def launch(stream: object) -> None:
            for repeated in several:
                repeated.launch(stream)

        return Repeated(launch)

    def most_blocks(self, function: Kernel, block: int) -> int:
        """All blocks of a launch are alive at once, whatever their number."""
        return sys.maxsize

    def blocks_each(self, function: Kernel, block: int) -> int:
        """One: there are no multiprocessors to share."""
        return 1

    def current_stream(self) -> None:
        """Return None: launches are synchronous."""

    def external_stream(self, pointer: int) -> None:
        """Return None: there are no streams."""

    def new_stream(self) -> None:
        """Return None: there are no streams."""

    def can_leave(self, stream: object) -> bool:
        """Return True: launches are synchronous."""
        return True

    def attached(self) -> AbstractContextManager[None]:
        """Do nothing: all threads use the CPU."""
        return nullcontext()

    def order(self, first: object, then: object) -> None:
        """Do nothing: launches are synchronous."""

    def event(self) -> Event:
        """Return an event, which is over."""
        return Event()

    def is_device_pointer(self, address: int) -> bool:
        """Return True: kernels use the process' own memory."""
        return True

    # Messages between two processes

    exports_are_copies = True

    def allocate_exported(self, nbytes: int) -> Exported:
        """Allocate zeroed memory that any process of this user can open, by a path in /proc."""
        memory = self.allocate_shared(max(nbytes, 1))
        self._exported.append(memory)
        return _exported(memory, nbytes)

    def allocation(self, address: int) -> Exported | None:
        """Return what `allocate_exported` gave, if an address is in it: other arrays are this process' alone."""
        inside = (memory for memory in self._exported if 0 <= address - memory.address < memory.nbytes)
        return next((_exported(memory, memory.nbytes, address - memory.address) for memory in inside), None)

    def export(self, address: int, nbytes: int) -> Exported:
        """Copy memory to where other processes can open it."""
        exported = _exported(self.allocate_shared(max(nbytes, 1)), nbytes)
        ctypes.memmove(exported.address, address, nbytes)
        return exported

    def open_exported(self, handle: bytes, nbytes: int) -> Memory:
        """Map what another process has exported."""
        return Memory(os.open(handle, os.O_RDWR), nbytes, owns_fd=True)

    def allocate_temporary(self, nbytes: int, stream: object) -> Temporary:
        """Allocate memory."""
        return Temporary(nbytes)

    def copy(self, to: int, source: int, nbytes: int, stream: object) -> None:
        """Copy memory."""
        ctypes.memmove(to, source, nbytes)

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read memory."""
        return ctypes.string_at(address, nbytes)

    def is_capturing(self, stream: object) -> bool:
        """Return False: there are no graphs."""
        return False


def _exported(memory: Memory, nbytes: int, offset: int = 0) -> Exported:
    path = f"/proc/{os.getpid()}/fd/{memory.fd}".encode()
    return Exported(memory.address, nbytes, path, memory.fd, offset, memory)
