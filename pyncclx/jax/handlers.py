"""Handlers: functions in Python that XLA calls while it runs a compiled program.

XLA passes a call as structures of C (`xla/ffi/api/c_api.h`), which are read here as 64-bit words. JAX checks the
version of the interface when it starts a platform.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

__all__ = ["PLATFORMS", "Array", "register"]

#: XLA's names of the platforms that have handlers, by JAX's names.
PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}
#: Bytes of an element, and its name in `arrays.datatypes.TABLE`, by XLA's numbers.
ELEMENTS = {1: (1, "bool"), 2: (1, "int8"), 3: (2, "int16"), 4: (4, "int32"), 5: (8, "int64"), 6: (1, "uint8")}
ELEMENTS |= {7: (2, "uint16"), 8: (4, "uint32"), 9: (8, "uint64"), 10: (2, "float16"), 11: (4, "float32")}
ELEMENTS |= {12: (8, "float64"), 15: (8, "complex64"), 16: (2, "bfloat16"), 18: (16, "complex128")}
ELEMENTS |= dict.fromkeys((19, 20, 23, 24, 25, 28, 29, 33), (1, ""))  # 8-bit floats
TOKEN = 17  # the number of tokens, which have no memory

_INT = 0xFFFFFFFF  # mask of the 32 bits of a word that are a C int
_MINOR_VERSION = 3  # version 0.3 of the interface; newer ones accept its handlers
_METADATA = 1  # type of the extension with which XLA asks for the version, and makes no call
_INTERNAL = 13  # XLA's code of errors in handlers
_ERROR_CREATE, _STREAM_GET = 6, 10  # places of functions in XLA's table
_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_BUFFER = struct.Struct("=16xi4x3q")  # type of the elements, address, rank, address of the dimensions


class Array(NamedTuple):
    """An argument or a result; `dtype` is empty for elements that can only be moved."""

    address: int
    shape: tuple[int, ...]
    itemsize: int
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.itemsize


# Takes arguments, results, the call's description, and the CUDA stream, which is None on the CPU.
Function = Callable[[list[Array], list[Array], bytes, "int | None"], None]
_kept: list[Any] = []  # XLA may call a handler until the process ends


def register(name: str, function: Function) -> None:
    """Register a function as the target of custom calls on all platforms.

    An exception in the function ends the compiled program with `jax.errors.JaxRuntimeError`.
    """
    for platform in PLATFORMS.values():
        handler = _Function(_handler(name, function, has_stream=platform == "CUDA"))
        _kept.append(handler)
        address = ctypes.cast(handler, ctypes.c_void_p).value
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform)


def _handler(name: str, function: Function, *, has_stream: bool) -> Callable[[int], int | None]:
    """Return a function from a call's address to an error's address or None."""

    def handle(address: int) -> int | None:
        call = _words(address, 21)
        if call[1] and _words(call[1], 2)[1] & _INT == _METADATA:
            _describe(call)
            return None
        try:
            stream = _stream_of(call) if has_stream else None
            function(_arrays(call[7], call[9]), _arrays(call[12], call[14]), _description(call[20]), stream)
        # If an exception escaped from the handler, XLA would take the call for a successful one.
        except BaseException as error:
            text = ctypes.create_string_buffer(f"{name}: {type(error).__name__}: {error}".encode())
            return _ask(call, _ERROR_CREATE, ctypes.addressof(text), _INTERNAL)[0]
        return None

    return handle


@functools.cache
def _format(count: int) -> struct.Struct:
    return struct.Struct(f"={count}q")


def _words(address: int, count: int) -> tuple[int, ...]:
    return _format(count).unpack(ctypes.string_at(address, 8 * count))


@functools.cache
def _function(address: int) -> Callable[[int], int | None]:
    """Return XLA's function at an address; XLA does not move its functions."""
    return _Function(address)


def _ask(call: Sequence[int], place: int, first: int, second: int = 0) -> tuple[int | None, int]:
    """Call one of XLA's functions; return its result, and its arguments' last word."""
    arguments = (ctypes.c_int64 * 4)(32, 0, first, second)
    return _function(_words(call[2] + 8 * place, 1)[0])(ctypes.addressof(arguments)), arguments[3]


def _stream_of(call: Sequence[int]) -> int:
    failed, stream = _ask(call, _STREAM_GET, call[3])
    if failed:
        raise RuntimeError("XLA has no stream for this call")
    return stream


def _describe(call: Sequence[int]) -> None:
    """Answer with the version, and that no call may be captured in a CUDA graph."""
    spoken, metadata = _words(call[2], 5)[4] >> 32, _words(call[1], 4)[3]
    answer = (ctypes.c_int64 * 4).from_address(metadata)
    answer[1:] = [24, 0, min(_MINOR_VERSION, spoken) << 32]
    ctypes.c_uint32.from_address(metadata + 32).value = 0


def _arrays(count: int, items: int) -> list[Array]:
    """Read arguments or results, without tokens."""
    found = []
    for item in _words(items, count):
        kind, address, rank, dims = _BUFFER.unpack(ctypes.string_at(item, _BUFFER.size))
        if kind != TOKEN:
            if kind not in ELEMENTS:
                raise TypeError(f"XLA's element type {kind} cannot be moved; convert the array")
            found.append(Array(address, _words(dims, rank) if rank else (), *ELEMENTS[kind]))
    return found


def _description(items: int) -> bytes:
    """Read the only attribute, a string."""
    return ctypes.string_at(*_words(_words(items, 1)[0], 2))
