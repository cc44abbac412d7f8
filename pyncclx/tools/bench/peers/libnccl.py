"""NCCL's C interface by ctypes: the part that the benchmark calls.

The source is nccl.h of NCCL 2.28.
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

UNIQUE_ID_NBYTES = 128
WINDOW_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
WINDOWS_SINCE = 22700

DATATYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5}
DATATYPES |= {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


class UniqueId(ctypes.Structure):
    """ncclUniqueId, an argument by value."""

    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_NBYTES),)


_COMM = _STREAM = _WINDOW = _DEVICE = c_void_p
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(_COMM), c_int, UniqueId, c_int),
    "ncclCommDestroy": (_COMM,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclReduce": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, c_int, _COMM, _STREAM),
    "ncclReduceScatter": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclBroadcast": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclAllGather": (_DEVICE, _DEVICE, c_size_t, c_int, _COMM, _STREAM),
    "ncclSend": (_DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclRecv": (_DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
}
_WINDOW_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclMemAlloc": (POINTER(c_void_p), c_size_t),
    "ncclMemFree": (c_void_p,),
    "ncclCommWindowRegister": (_COMM, _DEVICE, c_size_t, POINTER(_WINDOW), c_int),
    "ncclCommWindowDeregister": (_COMM, _WINDOW),
}


class NcclError(RuntimeError):
    """Failed call of NCCL."""


class Library:
    """libnccl.so.2: its functions are attributes, which raise `NcclError` on errors."""

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL(find()) if library is None else library
        self._declare(_PROTOTYPES)
        self._library.ncclGetErrorString.argtypes = (c_int,)
        self._library.ncclGetErrorString.restype = c_char_p
        number = c_int()
        self.ncclGetVersion(ctypes.byref(number))
        self.version: int = number.value
        if self.version >= WINDOWS_SINCE:
            self._declare(_WINDOW_PROTOTYPES)

    def __str__(self) -> str:
        return f"NCCL {self.version // 10000}.{self.version // 100 % 100}.{self.version % 100}"

    def __getattr__(self, name: str) -> Any:
        raise NcclError(f"{self} has no {name}")

    def _declare(self, prototypes: dict[str, tuple[Any, ...]]) -> None:
        for name, arguments in prototypes.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
            setattr(self, name, self._checked(name, function))

    def _checked(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                text = self._library.ncclGetErrorString(status).decode()
                raise NcclError(f"{name}: {text} (status {status}); NCCL_DEBUG=WARN prints more")

        return call


def find() -> str:
    """Return the path of the library that pip installed with PyTorch, or its name.

    The system searches for the name.
    """
    nvidia = importlib.util.find_spec("nvidia")
    for folder in (nvidia.submodule_search_locations or ()) if nvidia else ():
        library = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return "libnccl.so.2"
