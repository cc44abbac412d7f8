"""Packages that compile Python for GPUs: numba-cuda and its successor."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Package:
    """A package that compiles Python: its name on the package index, and its modules."""

    distribution: str
    top: str
    cuda: str
    types: str
    numpy_support: str
    errors: str

    @property
    def version(self) -> str:
        """Name and version, for the names of cached code."""
        return f"{self.distribution} {importlib.import_module(self.top).__version__}"

    def load(self) -> Any:
        """Import the package and return its counterpart of `numba.cuda`."""
        cuda = importlib.import_module(self.cuda)
        if self is NUMBA_CUDA:
            importlib.import_module("numba.cuda.descriptor").cuda_target.typing_context.refresh()
        importlib.import_module(self.types)
        importlib.import_module(self.numpy_support)
        return cuda

    def from_dtype(self, dtype: Any) -> Any:
        """Return Numba's type for a NumPy dtype."""
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
    """Return the package that this process compiles with; later calls return the same.

    A kernel can only call functions of its own compiler. So the successor is chosen if the program has imported
    it, or if it is the only one installed.
    """
    if NUMBA_CUDA_MLIR.top in sys.modules:
        return NUMBA_CUDA_MLIR
    installed = (each for each in (NUMBA_CUDA, NUMBA_CUDA_MLIR) if importlib.util.find_spec(each.top))
    return next(installed, NUMBA_CUDA)
