"""The packages that compile Python for GPUs: numba-cuda, and its successor numba-cuda-mlir."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Package:
    """One of them: its name on the package index, and the modules that are used of it."""

    distribution: str
    top: str
    cuda: str
    types: str
    numpy_support: str
    errors: str

    @property
    def version(self) -> str:
        """Its version, as caches of compiled code name it."""
        return f"{self.distribution} {importlib.import_module(self.top).__version__}"

    def load(self) -> Any:
        """Import it, with all that its first compilation loads, and return the counterpart of `numba.cuda`."""
        cuda = importlib.import_module(self.cuda)
        if self is NUMBA_CUDA:
            importlib.import_module("numba.cuda.descriptor").cuda_target.typing_context.refresh()
        importlib.import_module(self.types)
        importlib.import_module(self.numpy_support)
        return cuda

    def from_dtype(self, dtype: Any) -> Any:
        """Return its type of a NumPy dtype."""
        return importlib.import_module(self.numpy_support).from_dtype(dtype)


NUMBA_CUDA = Package(
    "numba-cuda",
    "numba_cuda",
    cuda="numba.cuda",
    types="numba.cuda.types",
    numpy_support="numba.cuda.np.numpy_support",
    errors="numba.core.errors",
)
NUMBA_CUDA_MLIR = Package(
    "numba-cuda-mlir",
    "numba_cuda_mlir",
    cuda="numba_cuda_mlir.cuda",
    types="numba_cuda_mlir.cuda.types",
    numpy_support="numba_cuda_mlir.numba_cuda.np.numpy_support",
    errors="numba_cuda_mlir.numba_cuda.core.errors",
)


@functools.cache
def chosen() -> Package:
    """Return what this process compiles with, from the first call on.

    A kernel can only call functions of its own compiler: so it is the successor if the program has imported
    that, or has nothing else.
    """
    if NUMBA_CUDA_MLIR.top in sys.modules:
        return NUMBA_CUDA_MLIR
    installed = (each for each in (NUMBA_CUDA, NUMBA_CUDA_MLIR) if importlib.util.find_spec(each.top))
    return next(installed, NUMBA_CUDA)
