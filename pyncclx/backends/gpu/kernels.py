"""Kernels of the GPU: NVRTC compiles, CuPy loads, and the driver launches them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import cupy
from cuda.bindings import driver

from ..compilers import ahead, numba_functions, nvrtc
from ..handles import PythonFunction
from .driver import GpuProperties, checked
from .events import Event, Repeated
from .launch import Launcher, Step

MOST_PARAMETERS_NBYTES = 4096


class GpuKernels(GpuProperties):
    """`backends.device.Kernels` on the GPU."""

    compiles_together = False
    # Before it loads a module, the driver waits for all work of the process.
    loads_beside_kernels = False
    launches_at_once = True

    def __init__(self) -> None:
        super().__init__()
        # Loaded functions are valid as long as their modules exist.
        self._modules: list[Any] = []
        # Launchers that no launch is using, for launches with and without `early`. In the middle of a launch another
        # thread may launch, and so may a signal handler on the same thread.
        self._launchers: dict[bool, list[Launcher]] = {False: [], True: []}

    def compile(
        self,
        file: str,
        instantiations: Sequence[str],
        called: PythonFunction | None = None,
        *,
        within: Sequence[str] = (),
    ) -> bytes:
        if called is None:
            return nvrtc.compile_cached(file, instantiations, self.architecture).dump()
        code = numba_functions.for_gpu(called.fn, called.types, self.architecture)
        return nvrtc.compile_linked(file, instantiations, self.architecture, code).dump()

    def compile_ahead(self, file: str, several: Sequence[Sequence[str]]) -> None:
        for names in several:
            target = nvrtc.target_of(file, names, self.architecture)
            if not nvrtc.is_cached(file, names, target):
                ahead.compile_ahead(file, names, target)

    def load(self, image: bytes, called: PythonFunction | None = None) -> dict[str, Any]:
        """Load all kernels now, so that the first launch is as fast as later ones.

        `called` is already in the image.
        """
        binary = nvrtc.Binary.load(image)
        module = cupy.cuda.Module()
        module.load(binary.cubin)
        self._modules.append(module)
        functions = {}
        for name, lowered in binary.lowered_names.items():
            address = module.get_function(lowered).ptr
            checked(driver.cuFuncLoad(address))
            functions[name] = ctypes.c_void_p(address)
        return functions

    def launch(self, function: Any, grid: int, block: int, parameters: bytes, stream: Any, early: bool = False) -> None:
        launcher = self._launcher(early)
        room = launcher.parameters
        room.view[: len(parameters)] = parameters
        launcher.launch(function, grid, block, room.pointers, stream.ptr, parameters)
        self._launchers[early].append(launcher)

    def launch_arguments(self, function: Any, grid: int, block: int, arguments: Sequence[bytes], stream: Any) -> None:
        values = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        launcher = self._launcher(False)
        launcher.launch(function, grid, block, ctypes.c_void_p(ctypes.addressof(pointers)), stream.ptr)
        self._launchers[False].append(launcher)

    def _launcher(self, early: bool) -> Launcher:
        """Take a launcher that no other launch is using."""
        try:
            return self._launchers[early].pop()
        except IndexError:
            return Launcher(MOST_PARAMETERS_NBYTES, early=early and self._launches_early)

    def repeated(self, function: Any, grid: int, block: int, parameters: bytes, event: Event | None = None) -> Repeated:
        return Repeated(self.launch, [Step(function, grid, block, parameters, event)])

    def together(self, several: Sequence[Repeated]) -> Repeated:
        return Repeated(self.launch, [step for repeated in several for step in repeated.steps])

    def most_blocks(self, function: Any, block: int) -> int:
        return self.multiprocessors * self.blocks_per_multiprocessor(function, block)

    def blocks_per_multiprocessor(self, function: Any, block: int) -> int:
        return int(checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.value, block, 0)))
