"""Location of an argument's memory: the device, or the host, which mpi4py handles."""

from __future__ import annotations

import array as stdlib_array
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from ..system import driver, settings
from ..system.driver import gpu_of_memory, is_device_pointer, is_there
from ..system.process import cached
from . import dlpack, pointers
from .protocols import interface_address
from .readers import Reader, device_classes, read_buffer, read_cupy, read_memory, read_numpy, read_torch, reader_of
from .specs import arrays_of, is_nothing

# Host arrays without a reader. NumPy's scalars are left out, because a rank may be one.
_PLAIN = bytes, bytearray, stdlib_array.array


@cached
def host_arrays() -> bool:
    """Return whether NumPy arrays are device arrays (``PYNCCLX_DEVICE=host``).

    The environment is read once.
    """
    return settings.DEVICE.get() == "host"


def where(spec: Any) -> str | None:
    """Return the location of a buffer argument's memory.

    Parameters
    ----------
    spec : array or mpi4py buffer spec
        The first item of a list or tuple is the array.

    Returns
    -------
    "device", "host" or None
        None for arguments without a buffer: None, `MPI.IN_PLACE`, memory at address 0, and `MPI.BOTTOM` unless its
        datatypes have absolute addresses. "host" is everything that mpi4py should handle. Under
        ``PYNCCLX_DEVICE=host``, NumPy arrays are on the device. So is other memory given by address, unless Python owns
        it, as in a bytearray.
    """
    if type(spec) in device_classes:
        return "device"
    if isinstance(spec, (list, tuple)):
        if spec and spec[0] is MPI.BOTTOM:
            return _where_absolute(spec)
        spec = spec[0] if spec else None
    read = reader_of(spec)
    if read is not None:
        return place(spec, read)
    return None if is_nothing(spec) or spec is MPI.IN_PLACE else "host"


def on_host(*buffers: Any) -> bool:
    """Return whether no buffer is a device array, so that mpi4py has to run the call.

    If only some are device arrays, return False; `resolve` then refuses the mixture. Also return False if no buffer has
    memory, one is an `MPI.buffer` at address 0, and this process uses a device: some libraries pass empty device arrays
    in this way.
    """
    for buffer in buffers:
        kind = type(buffer)
        if kind in device_classes or (kind is ndarray and host_arrays()) or where(buffer) == "device":
            return False
    arrays = arrays_of(*buffers)
    if not any(type(each) is MPI.buffer and not each.address for each in arrays):
        return True
    return any(map(_is_host_array, arrays)) or (driver.chosen_gpu() is None and not host_arrays())


def _is_host_array(array: Any) -> bool:
    """Return whether an argument is an array in host memory, not a number or operator."""
    return where(array) == "host" and (reader_of(array) is not None or isinstance(array, _PLAIN))


def on_device(value: Any) -> bool:
    """Return whether counts or displs are a device array.

    On the host device, NumPy arrays and objects with Python's buffer protocol count as host arrays here.
    """
    # None, integers, lists and tuples have no reader.
    read = reader_of(value)
    if read is None or ((read is read_numpy or read is read_memory) and host_arrays()):
        return False
    return place(value, read) == "device"


def place(array: Any, read: Reader) -> str | None:
    """Return the location of an array, like `where`, from the array and its `Reader`.

    This creates no context and loads no array library. If the process has no GPU yet, the GPU of the first device
    array becomes the process's GPU.
    """
    found = _place(array, read)
    if found == "device" and driver.chosen_gpu() is None and not host_arrays():
        _choose(_gpu_of(array, read))
    return found


def _choose(gpu: int | None) -> None:
    if gpu is not None:
        driver.choose_gpu(gpu)


def _gpu_of(array: Any, read: Reader) -> int | None:
    """Return the GPU of an array; None if it is empty or an already resolved argument."""
    if read is read_buffer:
        return None
    if read is read_torch:
        return int(array.device.index) if array.numel() else None
    if read is read_cupy:
        return int(array.data.device_id) if array.nbytes else None
    if read is read_numpy or read is read_memory:
        return gpu_of_memory(pointers.address_of(array))
    address = interface_address(array)
    return dlpack.device_of(array)[1] if address is None else gpu_of_memory(address)


def _place(array: Any, read: Reader) -> str | None:
    if read is read_cupy or read is read_buffer:
        return "device"
    if read is read_memory:
        return _place_of_memory(array)
    if host_arrays():
        return "device"
    if read is read_numpy or read is read_torch:
        on_device = array.is_cuda if read is read_torch else pointers.is_over_device(array)
        return "device" if on_device else "host"
    address = interface_address(array)
    if address is None:
        of_cuda = dlpack.device_of(array)[0] in (dlpack.CUDA, dlpack.CUDA_MANAGED)
        return "device" if of_cuda and is_there() else "host"
    # Arrays in host memory may have the attribute too, so the driver is asked. An empty array may have no address. It
    # counts as a device array if there is a device, because the other ranks' parts of the data are on their devices.
    return "device" if (is_device_pointer(address) if address else is_there()) else "host"


def _place_of_memory(memory: Any) -> str | None:
    if type(memory) is MPI.buffer and not memory.address:
        # An empty array; see `on_host`.
        return None
    on_host = pointers.is_of_host(memory) if host_arrays() else not pointers.is_over_device(memory)
    return "host" if on_host else "device"


def _where_absolute(spec: Any) -> str | None:
    """Return the location of a datatype's absolute addresses.

    If there are several datatypes, the first with absolute addresses decides.
    """
    keys = spec[-1] if isinstance(spec[-1], (list, tuple)) else spec[-1:]
    for each, displ in zip(keys, _byte_displs(spec, len(keys)), strict=False):
        if isinstance(each, MPI.Datatype) and each != MPI.DATATYPE_NULL and each.Get_size():
            lower, _ = each.Get_true_extent()
            if lower + displ:
                return "device" if host_arrays() or is_device_pointer(lower + displ) else None
    return None


def _byte_displs(spec: Any, blocks: int) -> Any:
    """Return the displacements of an argument with a datatype per block, or zeros."""
    displs = None
    if isinstance(spec[-1], (list, tuple)):
        if len(spec) == 4:
            displs = spec[2]
        elif len(spec) == 3 and isinstance(spec[1], (list, tuple)) and len(spec[1]) == 2:
            displs = spec[1][1]
    return [0] * blocks if displs is None else displs
