"""Device functions for Numba: signatures and declarations (twin of pyncclx.cuh)."""

from __future__ import annotations

from typing import Any

from ..backends.compilers import numba_cuda

LIBRARY = "numba_kernels/device_api.cu"  # the functions with C linkage, which kernels are linked with

_WHO = ("thread", "warp", "block")
_TEAM, _PUT, _SIGNAL = "uint64", "uint64, uint64, uint64, uint64, int32", "uint32, uint64"
_RECEIVE = "uint64, uint64, uint64, uint64, uint32"

#: Numba's signature of each function, by its name without the prefix ``pyncclx_``.
SIGNATURES = {
    "rank": f"int32({_TEAM})",
    "size": f"int32({_TEAM})",
    "expect_size": f"int32({_TEAM}, int32)",
    "peer_pointer": f"uint64({_TEAM}, uint64, int32)",
    **{f"{way}_{who}": f"int32({_PUT})" for way in ("put", "get") for who in _WHO},
    **{f"put_signal_{who}": f"int32({_PUT}, {_SIGNAL})" for who in _WHO},
    **{f"copy_{who}": "void(uint64, uint64, uint64)" for who in _WHO},
    **{f"put_packets_{who}": f"int32({_PUT}, uint32)" for who in _WHO},
    **{f"receive_packets_{who}": f"int32({_RECEIVE})" for who in _WHO},
    **dict.fromkeys(("signal_set", "signal_add"), f"int32({_TEAM}, int32, {_SIGNAL})"),
    "signal_read": f"uint64({_TEAM}, uint32)",
    **dict.fromkeys(("wait_until", "wait_until_block"), f"int32({_TEAM}, {_SIGNAL})"),
    "barrier": f"int32({_TEAM})",
    **dict.fromkeys(("allgather_block", "alltoall_block"), f"int32({_TEAM}, uint64, uint64, uint64)"),
    **{f"allreduce_block_{kind}": f"int32({_TEAM}, uint64, uint64)" for kind in ("f32", "f64", "i32", "i64")},
    **dict.fromkeys(("barrier_among", "last_block", "grid_barrier"), f"int32({_TEAM}, uint32)"),
    **{f"pready_{who}": "int32(uint64, uint32)" for who in _WHO},
    **dict.fromkeys(("parrived", "await_partition", "await_partition_block"), "int32(uint64, uint32)"),
    **dict.fromkeys(("fence", "quiet"), "void()"),
    **{f"atomic_add_u{n}": f"uint{n}({_TEAM}, uint64, uint{n}, int32)" for n in (32, 64)},
    **{f"atomic_cas_u{n}": f"uint{n}({_TEAM}, uint64, uint{n}, uint{n}, int32)" for n in (32, 64)},
}


def function(name: str) -> Any:
    """Return a function of `pyncclx.device` for Numba, declared at its first use.

    Raises
    ------
    AttributeError
        If there is no such function.
    NotSupported
        Numba's CUDA target is missing.
    """
    if name == "address":
        return numba_cuda.address_function()
    if name == "pointer":
        return numba_cuda.pointer_function()
    if name not in SIGNATURES:
        raise AttributeError(f"module 'pyncclx.device' has no attribute {name!r}")
    return declare(f"pyncclx_{name}", SIGNATURES[name])


def declare(symbol: str, signature: str) -> Any:
    """Declare a function of C linkage to Numba, linked with the device functions."""
    return numba_cuda.device_function(symbol, signature, LIBRARY)
