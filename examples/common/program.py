"""Command line, arrays, shares and figures for programs of several folders."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

Array = Any  # NumPy's or CuPy's


def read_options(comm: Any, parse: Callable[[], argparse.Namespace]) -> argparse.Namespace:
    """Parse the command line on rank 0, so that help and errors appear once."""
    options: Any = None
    if comm.rank == 0:
        try:
            options = parse()
        except SystemExit as end:
            options = end.code
    options = comm.bcast(options)
    return options if isinstance(options, argparse.Namespace) else sys.exit(options)


def array_module(comm: Any, dtype: str) -> Any:
    """Select this rank's GPU and return CuPy; return NumPy on the host device."""
    try:
        comm.select_device()
    except (ImportError, RuntimeError) as error:
        stop(comm, f"no GPU to run on ({error}). Set PYNCCLX_DEVICE=host to run without one")
    xp = np if comm.device == "host" else importlib.import_module("cupy")
    try:
        if dtype == "bfloat16":
            importlib.import_module("ml_dtypes")  # registers bfloat16 with NumPy, and with CuPy from 14
        xp.zeros(1, dtype)
    except (ImportError, TypeError, ValueError) as error:
        stop(comm, f"--dtype {dtype} is not possible with this {xp.__name__}: {error}")
    return xp


def stop(comm: Any, text: str) -> NoReturn:
    """End the program on all ranks; rank 0 prints why."""
    raise SystemExit(f"{Path(sys.argv[0]).stem}: {text}" if comm.rank == 0 else 1)


def to_host(array: Array) -> Array:
    """Return a NumPy array with the same contents."""
    return array.get() if hasattr(array, "get") else array


def share(length: int, parts: int, part: int) -> tuple[int, int]:
    """Return a part's first row and length; the first parts get the remainder."""
    each, rest = divmod(length, parts)
    return part * each + min(part, rest), each + (part < rest)


def figure(columns: int, rows: int = 1) -> tuple[Any, Any]:
    """Return a figure with panels side by side, and the panels."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    return plt.subplots(rows, columns, figsize=(4.5 * columns, 4 * rows), layout="constrained")


def device_name(comm: Any) -> str:
    """Return where the kernels of a communicator run, for captions."""
    if getattr(comm, "device", "host") == "host":
        return "the CPU (EMULATED)"
    cuda = importlib.import_module("cupy").cuda
    return str(cuda.runtime.getDeviceProperties(cuda.Device().id)["name"].decode())


def sign(drawing: Any, comm: Any) -> None:
    """Write the device and the number of ranks below a figure."""
    drawing.supxlabel(f"{comm.size} rank{'s' * (comm.size > 1)} on {device_name(comm)}", fontsize=9, color="0.35")
