"""Kernels of the GPU: NVRTC compiles, CuPy loads, and the driver launches them."""

from __future__ import annotations

import ctypes
import threading
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
        self._launcher = Launcher(MOST_PARAMETERS_NBYTES)
        self._early_launcher = Launcher(MOST_PARAMETERS_NBYTES, early=self._launches_early)
        # Only one thread at a time may use the launchers.
        self._launching = threading.Lock()

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
        with self._launching:
            launcher = self._early_launcher if early else self._launcher
            room = launcher.parameters
            room.view[: len(parameters)] = parameters
            launcher.launch(function, grid, block, room.pointers, stream.ptr, parameters)

    def launch_arguments(self, function: Any, grid: int, block: int, arguments: Sequence[bytes], stream: Any) -> None:
        values = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with self._launching:
            place = ctypes.c_void_p(ctypes.addressof(pointers))
            self._launcher.launch(function, grid, block, place, stream.ptr)

    def repeated(self, function: Any, grid: int, block: int, parameters: bytes, event: Event | None = None) -> Repeated:
        return Repeated(self.launch, [Step(function, grid, block, parameters, event)])

    def together(self, several: Sequence[Repeated]) -> Repeated:
        return Repeated(self.launch, [step for repeated in several for step in repeated.steps])

    def most_blocks(self, function: Any, block: int) -> int:
        return self.multiprocessors * self.blocks_per_multiprocessor(function, block)

    def blocks_per_multiprocessor(self, function: Any, block: int) -> int:
        return int(checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.value, block, 0)))
