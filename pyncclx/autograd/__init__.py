"""Collectives that PyTorch differentiates, as functions of a tensor.

Names are loaded at their first use, which imports PyTorch. Of pyncclx's other packages, only `torch` imports it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .functions import all_gather, all_reduce, all_to_all, copy, gather, reduce, reduce_scatter, scatter

__all__ = ["all_gather", "all_reduce", "all_to_all", "copy", "gather", "reduce", "reduce_scatter", "scatter"]

# Type checkers must report missing names, which this function would hide.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        functions = importlib.import_module(".functions", __name__)
        return globals().setdefault(name, getattr(functions, name))
