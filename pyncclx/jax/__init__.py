"""Collectives and messages inside `jax.jit`, with the functions of mpi4jax.

A program that imports this module in place of mpi4jax needs no other change. Names are loaded at their first use, which
imports JAX. No other package of pyncclx imports JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .collectives import allgather, allreduce, alltoall, barrier, bcast, gather, reduce, scan, scatter
    from .dynamic import alltoallv
    from .messages import recv, send, sendrecv
    from .tokens import TokenShuffle

_MODULES = {
    **dict.fromkeys(("allgather", "allreduce", "alltoall", "barrier", "bcast", "gather"), "collectives"),
    **dict.fromkeys(("reduce", "scan", "scatter"), "collectives"),
    **dict.fromkeys(("recv", "send", "sendrecv"), "messages"),
    "alltoallv": "dynamic",
    "TokenShuffle": "tokens",
}
__all__ = ["TokenShuffle", "allgather", "allreduce", "alltoall", "alltoallv", "barrier", "bcast", "gather"]
__all__ += ["has_cuda_support", "has_sycl_support", "recv", "reduce", "scan", "scatter", "send", "sendrecv"]
#: The version of mpi4jax whose functions this module has.
__version__ = "0.9.1"


def has_cuda_support() -> bool:
    """Return True: arrays on NVIDIA's GPUs are supported."""
    return True


def has_sycl_support() -> bool:
    """Return False: arrays on Intel's GPUs are not supported."""
    return False


# Type checkers must report missing names, which this function would hide.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f".{_MODULES[name]}", __name__)
        return globals().setdefault(name, getattr(module, name))
