"""Readers for arrays with `__cuda_array_interface__` or `__dlpack__`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from mpi_bootstrap.own_errors import own_error

from . import dlpack
from .checks import Device, Memory, check_ordinal, in_host_memory, is_contiguous, is_in_c_order, not_contiguous
from .datatypes import MOVED_ONLY, TABLE, void


def has_protocol(array: Any) -> bool:
    """Return whether an object or class has the CUDA array interface or `__dlpack__`."""
    return hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__")


def interface_address(array: Any) -> int | None:
    """Return the address in the CUDA array interface; None without the interface.

    It may be an address of host memory.
    """
    interface = _interface(array)
    return None if interface is None else _address(interface, "where")


def read_protocol(array: Any, name: str, device: Device) -> Memory:
    """Return the memory of an array with the CUDA array interface or `__dlpack__`.

    If the array has both, the CUDA array interface is read: it specifies the producer's stream, and takes a third of
    the time of a DLPack export.
    """
    interface = _interface(array)
    memory = _read_dlpack(array, name, device) if interface is None else _read_interface(array, interface, name)
    address, nbytes = memory[:2]
    if nbytes and not device.is_device_pointer(address):
        raise in_host_memory(array, name)
    if device.name != "host" and hasattr(array, "__dlpack_device__"):
        check_ordinal(name, dlpack.device_of(array)[1], device)
    return memory


def protocol_in_c_order(owner: Any) -> bool:
    """Return whether memory that `read_protocol` has read is in C order.

    `owner` is the array or its DLPack capsule.
    """
    tensor = dlpack.exported(owner)
    if tensor is not None:
        return tensor.strides is None or is_in_c_order(tensor.shape, tensor.strides, 1)
    interface = _interface(owner) or {}
    strides = interface.get("strides")
    if strides is None:
        return True
    return is_in_c_order(interface["shape"], strides, np.dtype(interface["typestr"]).itemsize)


def _interface(array: Any) -> dict[str, Any] | None:
    try:
        interface: dict[str, Any] = array.__cuda_array_interface__
    except AttributeError:
        return None
    # Some arrays raise for element types without a name in the interface, such as bfloat16.
    except Exception as error:
        if not hasattr(array, "__dlpack__") or own_error(error) is None:
            raise
        return None
    if not isinstance(interface, dict):
        raise TypeError(f"__cuda_array_interface__ is {interface!r}, expecting a dict")
    return interface


def _address(interface: dict[str, Any], name: str) -> int:
    data = interface["data"]
    if not isinstance(data, tuple):
        raise TypeError(f"{name}: __cuda_array_interface__ has data {data!r}, expecting a tuple")
    if len(data) != 2:
        raise ValueError(f"{name}: __cuda_array_interface__ has data {data!r}, expecting (address, read-only)")
    address = data[0]
    if address is None and 0 in interface["shape"]:
        return 0
    if not isinstance(address, int):
        raise TypeError(f"{name}: __cuda_array_interface__ has address {address!r}, expecting an integer")
    return address


def _read_interface(array: Any, interface: dict[str, Any], name: str) -> Memory:
    shape, typestr = _checked_fields(interface, name)
    dtype = np.dtype(typestr)
    strides = interface.get("strides")
    if strides is not None and not is_contiguous(shape, strides, dtype.itemsize):
        raise not_contiguous(name, shape, strides)
    key: Any = dtype
    # The interface has no name for bfloat16, but the array's own dtype may have one.
    if dtype.kind == "V":
        key = TABLE.get(str(getattr(array, "dtype", "")), dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    address = _address(interface, name)
    readonly = bool(interface["data"][1])
    return address, nbytes, key, shape, readonly, interface.get("stream"), array


def _checked_fields(interface: dict[str, Any], name: str) -> tuple[tuple[int, ...], str]:
    """Return shape and typestr; raise if the fields are malformed or unsupported."""
    for field in ("shape", "typestr", "data"):
        if field not in interface:
            raise KeyError(f"{name}: __cuda_array_interface__ lacks {field!r}")
    if interface.get("mask") is not None:
        raise BufferError(f"{name} is a masked array; pass its data and its mask in separate calls")
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    if typestr[0] not in "<>|" or min(shape, default=0) < 0:
        raise BufferError(f"{name}: __cuda_array_interface__ has typestr {typestr!r}, shape {shape}")
    if not typestr[2:].isdecimal():
        raise ValueError(f"{name}: __cuda_array_interface__ has typestr {typestr!r}, without a size")
    descr = interface.get("descr")
    if descr is not None and (len(descr) != 1 or descr[0] != ("", typestr)):
        warnings.warn(f"{name}: __cuda_array_interface__: 'descr' is ignored", RuntimeWarning, stacklevel=3)
    return shape, typestr


def _read_dlpack(array: Any, name: str, device: Device) -> Memory:
    try:
        tensor = dlpack.read(array, _stream_number(device.current_stream()))
    except BufferError as error:
        raise BufferError(f"{name} cannot be exported: {error}") from error
    if tensor.strides is not None and not is_contiguous(tensor.shape, tensor.strides, 1):
        raise not_contiguous(name, tensor.shape, tensor.strides)
    nbytes = math.prod(tensor.shape) * tensor.itemsize
    datatype = TABLE.get(tensor.name) or MOVED_ONLY.get(tensor.name) or void(tensor.itemsize)
    # The export has already made the current stream wait for the producer.
    return tensor.address, nbytes, datatype, tensor.shape, tensor.readonly, None, tensor.capsule


def _stream_number(stream: Any) -> int:
    if stream is None:
        return -1
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    # In DLPack, 1 is the legacy default stream, and 0 is invalid.
    return int(getattr(stream, "ptr", stream)) or 1
