"""Kernels of the host device: functions of a library that g++ has made, called with their arguments as bytes."""

from __future__ import annotations

import ctypes
from typing import Any


class Launch(ctypes.Structure):
    """`Launch` of ``cuda/host/emulator.h``."""

    _fields_ = [
        ("grid", ctypes.c_uint),
        ("block", ctypes.c_uint),
        ("shared_nbytes", ctypes.c_uint),
        ("hostile", ctypes.c_uint),
        ("seed", ctypes.c_ulonglong),
        ("watchdog_s", ctypes.c_double),
    ]


class Kernel:
    """A kernel in a loaded library."""

    def __init__(self, library: ctypes.CDLL, symbol: str, name: str) -> None:
        self.name = name
        describe = library[f"{symbol}_parameters"]
        describe.restype = ctypes.c_char_p
        self.parameters = [int(nbytes) for nbytes in describe().split()]  # the size of each
        self.run = library[symbol]
        self.run.argtypes = [ctypes.POINTER(Launch), ctypes.POINTER(ctypes.c_char_p)]
        self.error = library.emulator_error
        self.error.restype = ctypes.c_char_p
        self._library = library
        self._operator: Any = None

    def set_operator(self, symbol: str, operator: Any) -> None:
        """Let the kernels of this library call an operator by that name, and keep it alive."""
        ctypes.c_void_p.in_dll(self._library, symbol).value = operator.address
        self._operator = operator
