"""Handlers: functions in Python that XLA calls while it runs a compiled program.

XLA passes a call as structures of C (`xla/ffi/api/c_api.h`), which are read here as 64-bit words. JAX checks the
version of the interface when it starts a platform.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

import jax
from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.datatypes import TABLE, void
from ..system.process import MOST_ITEMS

__all__ = ["PLATFORMS", "register"]

#: XLA's names of the platforms that have handlers, by JAX's names.
PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}
_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
#: Datatypes by XLA's numbers of element types.
DATATYPES = {number: TABLE[name] for number, name in enumerate(_NAMES.split(), 1)}
DATATYPES |= {15: TABLE["complex64"], 16: TABLE["bfloat16"], 18: TABLE["complex128"]}
DATATYPES |= dict.fromkeys((19, 20, 23, 24, 25, 28, 29, 33), void(1))  # 8-bit floats, which can only be moved
TOKEN = 17  # the number of tokens, which have no memory

_INT = 0xFFFFFFFF  # mask of the 32 bits of a word that are a C int
_MINOR_VERSION = 3  # version 0.3 of the interface; newer ones accept its handlers
_METADATA = 1  # type of the extension with which XLA asks for the version, and makes no call
_INTERNAL = 13  # XLA's code of errors in handlers
_ERROR_CREATE, _STREAM_GET = 6, 10  # places of functions in XLA's table
_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_function_at = functools.cache(_Function)  # XLA does not move its functions
# Extension, table of functions, context; count and address of the arguments; the same of results; attributes.
_FRAME = struct.Struct("=8x 3q 24x q 8x q 16x q 8x q 40x q")
_BUFFER = struct.Struct("=16x i 4x 3q")  # type of the elements, address, rank, address of the dimensions
# All addresses, as one array: `unpack_from` reads it in a third of the time that `ctypes.string_at` takes.
_MEMORY = (ctypes.c_char * sys.maxsize).from_address(0)

# Takes arguments, results, the call's description, and the CUDA stream, which is None on the CPU.
Function = Callable[[list[Buffer], list[Buffer], bytes, "int | None"], None]
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
        extension, table, context, *frame, attributes = _FRAME.unpack_from(_MEMORY, address)
        if extension and _words(extension, 2)[1] & _INT == _METADATA:
            _describe(table, extension)
            return None
        try:
            stream = _stream_of(table, context) if has_stream else None
            function(_buffers(*frame[:2]), _buffers(*frame[2:]), _description(attributes), stream)
        # If an exception escaped from the handler, XLA would take the call for a successful one.
        except BaseException as error:
            text = ctypes.create_string_buffer(f"{name}: {type(error).__name__}: {error}".encode())
            return _ask(table, _ERROR_CREATE, ctypes.addressof(text), _INTERNAL)[0]
        return None

    return handle


def _words(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"={count}q", _MEMORY, address)


def _ask(table: int, place: int, first: int, second: int = 0) -> tuple[int | None, int]:
    """Call one of XLA's functions; return its result, and its arguments' last word."""
    arguments = (ctypes.c_int64 * 4)(32, 0, first, second)
    return _function_at(_words(table + 8 * place, 1)[0])(ctypes.addressof(arguments)), arguments[3]


def _stream_of(table: int, context: int) -> int:
    failed, stream = _ask(table, _STREAM_GET, context)
    if failed:
        raise RuntimeError("XLA has no stream for this call")
    return stream


def _describe(table: int, extension: int) -> None:
    """Answer with the version, and that no call may be captured in a CUDA graph."""
    spoken, metadata = _words(table, 5)[4] >> 32, _words(extension, 4)[3]
    answer = (ctypes.c_int64 * 4).from_address(metadata)
    answer[1:] = [24, 0, min(_MINOR_VERSION, spoken) << 32]
    ctypes.c_uint32.from_address(metadata + 32).value = 0


def _buffers(count: int, items: int) -> list[Buffer]:
    """Read arguments or results, without tokens."""
    found = []
    for item in _words(items, count):
        kind, address, rank, dims = _BUFFER.unpack_from(_MEMORY, item)
        if kind != TOKEN:
            found.append(_buffer(kind, address, _words(dims, rank)))
    return found


@functools.lru_cache(MOST_ITEMS)
def _buffer(kind: int, address: int, shape: tuple[int, ...]) -> Buffer:
    """Return an array of XLA; its owner is an `MPI.buffer` of its memory."""
    if kind not in DATATYPES:
        raise TypeError(f"XLA's element type {kind} cannot be moved; convert the array")
    datatype, count = DATATYPES[kind], math.prod(shape)
    memory = MPI.buffer.fromaddress(address, count * datatype.itemsize)
    return Buffer(address, count, datatype, shape, False, None, memory)


def _description(items: int) -> bytes:
    """Read the only attribute, a string."""
    return ctypes.string_at(*_words(_words(items, 1)[0], 2))
