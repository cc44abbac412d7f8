"""Kernels of the host device: functions of libraries compiled by g++.

Arguments are passed as bytes.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...system import paths, settings
from ...system.threads import BEGUN, has_begun
from ..compilers import gxx, numba_functions
from ..handles import PythonFunction
from .streams import Event, Stream

# Most libraries that keep threads and stacks for one launching thread.
MOST_LIBRARIES = 32


class Launch(ctypes.Structure):
    """`Launch` of ``cuda/host/emulator.h``."""

    _fields_ = [
        ("grid", ctypes.c_uint),
        ("block", ctypes.c_uint),
        ("shared_nbytes", ctypes.c_uint),
        ("hostile", ctypes.c_uint),
        ("seed", ctypes.c_ulonglong),
        ("watchdog_s", ctypes.c_double),
        ("launched", ctypes.c_void_p),
        ("previous", ctypes.c_void_p),
    ]


class Kernel:
    """Kernel of a loaded library."""

    def __init__(self, library: ctypes.CDLL, symbol: str, name: str) -> None:
        self.name = name
        describe = library[f"{symbol}_parameters"]
        describe.restype = ctypes.c_char_p
        self.parameters_nbytes = [int(nbytes) for nbytes in describe().split()]
        self.run = library[symbol]
        self.run.argtypes = [ctypes.POINTER(Launch), ctypes.POINTER(ctypes.c_char_p)]
        self.error = library.emulator_error
        self.error.restype = ctypes.c_char_p
        self.library = library
        self.called: Any = None  # the Numba function that the kernel calls, kept alive


class Repeated:
    """Prepared launch of one or several kernels."""

    def __init__(self, launch: Callable[[Stream | None], None], begun: list[bool]) -> None:
        self.launch, self.begun = launch, begun

    def launch_aside(self, stream: Stream | None, aside: Stream | None) -> bool:
        """Make `aside` wait for the work now on `stream`, and launch there."""
        end = Event()
        end.record(stream)
        end.order(aside)
        self.launch(aside)
        return True


class HostKernels:
    """`backends.device.Kernels` on CPU threads; other Python threads run meanwhile.

    Parameters
    ----------
    seed
        If not 0, the emulator permutes the threads of a block, differently at each launch.
        None: ``PYNCCLX_SEED``.
    hostile
        Whether stores to peers are delayed and reordered, as the GPU memory model allows.
        None: ``PYNCCLX_HOSTILE``.
    watchdog_s
        Seconds without progress of a block after which the launch fails.
    """

    running: int  # defined by `HostStreams`
    architecture = "host"
    compiles_together = True
    loads_beside_kernels = True
    launches_at_once = False

    def __init__(self, seed: int | None, hostile: bool | None, watchdog_s: float) -> None:
        self.seed = settings.SEED.get() if seed is None else seed
        self.hostile = settings.HOSTILE.get() if hostile is None else hostile
        self.watchdog_s = watchdog_s
        self._launches = itertools.count(1)

    def compile(
        self,
        file: str,
        instantiations: Sequence[str],
        called: PythonFunction | None = None,
        *,
        within: Sequence[str] = (),
    ) -> bytes:
        """Compile kernels into a shared library in the cache, and return its path.

        Parameters
        ----------
        file
            Source file, relative to the CUDA folder, or an absolute path.
        instantiations
            Kernels as C++ expressions, as in ``"allreduce<float, Sum>"``.
        called
            Not used; `load` adds the function.
        within
            If the cache has a library with all these kernels, its path is returned instead.

        Raises
        ------
        NotSupported
            If there is no g++.
        RuntimeError
            If g++ rejects the source; the text has its messages.
        """
        return os.fsencode(gxx.compile_cached(paths.CUDA_DIR / file, instantiations, within))

    def compile_ahead(self, file: str, several: Sequence[Sequence[str]]) -> None:
        """Do nothing, because the kernels of a template are compiled together."""

    def load(self, image: bytes, called: PythonFunction | None = None) -> dict[str, Kernel]:
        """Load a compiled library; with `called`, load a copy that calls that function."""
        if called is None:
            return _kernels_of(ctypes.CDLL(os.fsdecode(image)))
        library = Path(os.fsdecode(image))
        with tempfile.NamedTemporaryFile(dir=library.parent, suffix=".so") as copy:
            copy.write(library.read_bytes())
            copy.flush()
            kernels = _kernels_of(ctypes.CDLL(copy.name))
        function = numba_functions.for_host(called.fn, called.types)
        for kernel in kernels.values():
            kernel.called = function
            ctypes.c_void_p.in_dll(kernel.library, numba_functions.symbol_of(called.types)).value = function.address
        return kernels

    def launch(
        self, function: Kernel, grid: int, block: int, parameters: bytes, stream: Stream | None, early: bool = False
    ) -> None:
        self.launch_arguments(function, grid, block, [parameters], stream)

    def launch_arguments(
        self, function: Kernel, grid: int, block: int, arguments: Sequence[bytes], stream: Stream | None
    ) -> None:
        """Launch a kernel; on stream None, wait until it has ended.

        Raises
        ------
        ValueError
            If the arguments do not have the sizes of the kernel's parameters.
        RuntimeError
            If the kernel hangs, deadlocks, or does something that a GPU rejects; the text says what. On a stream other
            than None, the next call that uses the stream or waits for it raises the error.
        """
        sizes = [len(argument) for argument in arguments]
        if sizes != function.parameters_nbytes:
            wanted = f"takes parameters of {function.parameters_nbytes} bytes, got {sizes}"
            raise ValueError(f"{function.name} {wanted}; numbers of other sizes are NumPy's, as np.int32(n)")
        seed = self.seed + next(self._launches) if self.seed else 0
        how = Launch(grid=grid, block=block, hostile=self.hostile, seed=seed, watchdog_s=self.watchdog_s)
        pointers = (ctypes.c_char_p * len(arguments))(*map(bytes, arguments))
        if stream is None:
            self.running += 1
            try:
                _run(function, how, pointers, arguments[-1])
            finally:
                self.running -= 1
        else:
            stream.enqueue(functools.partial(_run, function, how, pointers, arguments[-1]), arguments[-1])

    def repeated(
        self, function: Kernel, grid: int, block: int, parameters: bytes, event: Event | None = None
    ) -> Repeated:
        begun = [False]

        def launch(stream: Stream | None) -> None:
            # BEGUN may hold equal parameters from an earlier launch of this thread.
            BEGUN[threading.get_ident()] = b""
            try:
                self.launch(function, grid, block, parameters, stream)
            except BaseException:
                begun[0] = has_begun(parameters)
                raise
            begun[0] = True
            if event is not None:
                event.record(stream)

        return Repeated(launch, begun)

    def together(self, several: Sequence[Repeated]) -> Repeated:
        def launch(stream: Stream | None) -> None:
            for repeated in several:
                repeated.launch(stream)

        return Repeated(launch, [False])

    def most_blocks(self, function: Kernel, block: int) -> int:
        # All blocks of a launch run at once.
        return sys.maxsize

    def blocks_per_multiprocessor(self, function: Kernel, block: int) -> int:
        # There are no multiprocessors to share.
        return 1


class _Libraries(threading.local):
    """The libraries whose kernels a thread has launched, most recently used last.

    A library keeps threads and stacks between launches: some hundred memory mappings. Linux allows a process 65,530
    mappings, so the least recently used libraries release theirs.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[int, ctypes.CDLL] = OrderedDict()

    def use(self, library: ctypes.CDLL) -> None:
        self._used[library._handle] = library
        self._used.move_to_end(library._handle)
        if len(self._used) > MOST_LIBRARIES:
            _, unused = self._used.popitem(last=False)
            unused.emulator_release()


_libraries = _Libraries()


def _run(function: Kernel, how: Launch, pointers: Any, parameters: bytes) -> None:
    _libraries.use(function.library)
    reference, thread = ctypes.byref(how), threading.get_ident()
    BEGUN[thread] = parameters
    if function.run(reference, pointers) != 0:
        # The error of this thread's last launch.
        raise RuntimeError(function.error().decode())


def _kernels_of(library: ctypes.CDLL) -> dict[str, Kernel]:
    names = ctypes.c_char_p.in_dll(library, "pyncclx_kernels").value or b""
    return {name: Kernel(library, f"kernel_{i}", name) for i, name in enumerate(names.decode().split("\n"))}
