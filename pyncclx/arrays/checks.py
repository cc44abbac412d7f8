"""The result type of array readers, and errors for arrays that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..errors import NotSupported

# (address, nbytes, a key for `datatypes.of`, shape, readonly, stream of the producer or None, owner).
# It is a plain tuple because each operation makes two: a tuple takes 0.05 µs, an object with these fields 0.4 µs
# (CPython 3.11, 2026-11-24).
Memory = tuple[int, int, Any, tuple[int, ...], bool, "int | None", object]


class Device(Protocol):
    """The methods of `backends.Device` that readers of arrays call."""

    @property
    def name(self) -> str: ...

    @property
    def ordinal(self) -> int: ...

    def current_stream(self) -> Any: ...

    def is_device_pointer(self, address: int) -> bool: ...

    def room(self, address: int, nbytes: int) -> int: ...


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Return whether strides are those of C or Fortran order.

    An axis of one element may have any stride.
    """
    if 0 in shape:
        return True
    axes = list(zip(shape, strides, strict=True))
    return _packed(reversed(axes), itemsize) or _packed(axes, itemsize)


def is_in_c_order(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Return whether strides are those of C order.

    An axis of one element may have any stride.
    """
    return 0 in shape or _packed(reversed(list(zip(shape, strides, strict=True))), itemsize)


def _packed(axes: Iterable[tuple[int, int]], expected: int) -> bool:
    for extent, stride in axes:
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def check_ordinal(name: str, ordinal: int, device: Device) -> None:
    """Raise an error for an array on another GPU than the communicator's."""
    if device.name != "gpu":
        raise NotSupported(f"{name} is on GPU {ordinal}, PYNCCLX_DEVICE=host takes NumPy arrays only; unset it")
    if ordinal != device.ordinal:
        raise ValueError(
            f"{name} is on GPU {ordinal}, the communicator on GPU {device.ordinal}; allocate it there, "
            f"for example under cupy.cuda.Device({device.ordinal})"
        )


def not_contiguous(name: str, shape: Sequence[int], strides: Sequence[int]) -> BufferError:
    """Return the error for an array with gaps."""
    return BufferError(
        f"{name} is not contiguous (shape {tuple(shape)}, strides {tuple(strides)}); pass a contiguous copy, "
        f"for example by ascontiguousarray({last_word(name)})"
    )


def in_host_memory(array: Any, name: str) -> NotSupported:
    """Return the error for an array in host memory that must be a device array."""
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    return NotSupported(
        f"{name} is in host memory ({kind}), the operation's other buffer on the device; copy one of them, "
        f"for example by cupy.asarray({last_word(name)}), so that both are in the same place"
    )


def last_word(name: str) -> str:
    """Return the argument's name alone, such as "recvbuf" of ``"Allreduce: recvbuf"``."""
    return name.rpartition(" ")[2]
