"""All environment variables of pyncclx: name, type, default, unit and description.

A variable is read when it is needed, not at import. ``python -m pyncclx info`` and the documentation print the list.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import faults

T = TypeVar("T")
PREFIX = "PYNCCLX_"
TESTS = "PYNCCLX_TEST_"  # prefix of variables that only tests read
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable.

    Attributes
    ----------
    name : str
    default : object
        The value if the variable is not set, or empty.
    parse : callable
        Returns the value of a text; raises ValueError for an invalid text.
    accepts : str
        The valid values, for error messages and documentation.
    text : str
        What the variable sets, in one line.
    default_text : str
        The default, as documentation writes it.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    accepts: str
    text: str
    default_text: str

    def get(self) -> T:
        """Return the value from the environment, or the default.

        Raises
        ------
        ValueError
            If the variable is set to an invalid value.
        """
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text.strip())
        except ValueError:
            raise ValueError(f"{self.name} is {text!r}; it can be {self.accepts}") from None

    @property
    def is_set(self) -> bool:
        """Whether the environment sets the variable."""
        return bool(os.environ.get(self.name))

    def set_default(self, text: str) -> None:
        """Set the variable for this process and its children, unless it is already set."""
        os.environ.setdefault(self.name, text)


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return parse


def _nbytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match or not int(match[1]):
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2]]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(text)
    return seconds


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(each) for each in text.split(os.pathsep) if each)


def _switch(name: str, *, default: bool, text: str) -> Setting[bool]:
    """Return a setting that is on or off."""
    parse = _one_of("0", "1")
    return Setting(name, default, lambda value: parse(value) == "1", "1 or 0", text, "on" if default else "off")


def _level(name: str, *, text: str) -> Setting[int]:
    """Return a setting that is 0, 1 or 2; the default is 1."""
    parse = _one_of("0", "1", "2")
    return Setting(name, 1, lambda value: int(parse(value)), "0, 1 or 2", text, "`1`")


def _either(name: str, default: str, other: str, *, text: str) -> Setting[str]:
    """Return a setting with two possible values."""
    accepts = f"'{default}' (the default) or '{other}'"
    return Setting(name, default, _one_of(default, other), accepts, text, f"`{default}`")


DEVICE = Setting(
    "PYNCCLX_DEVICE",
    default="gpu",
    parse=_one_of("gpu", "host"),
    accepts="'gpu' (the default) or 'host' (emulated)",
    text="where kernels run: `gpu`, or `host`, which emulates them on the CPU and takes NumPy arrays as device arrays",
    default_text="`gpu`",
)
HEAP = Setting(
    "PYNCCLX_HEAP",
    default=96 << 20,
    parse=_nbytes,
    accepts="a number of bytes, 1 or more, such as 16777216 or 16M",
    text="device memory that a process uses for communication, in bytes or with `K`, `M`, `G`; with less, fewer "
    "messages use LL128 lines",
    default_text="`96M`",
)
CHANNELS = Setting[int | None](
    "PYNCCLX_CHANNELS",
    default=None,
    parse=_positive,
    accepts="a number of blocks, from 1 up to the multiprocessors of the GPU",
    text="the most blocks of an operation on a GPU, up to one for each multiprocessor; ranks that share the GPU share "
    "these blocks. More are faster, and leave less of the GPU to other kernels",
    default_text="`64`",
)
LINES = _switch(
    "PYNCCLX_LINES", default=True, text="`0`: no LL128 lines, for links that do not deliver 128 bytes as a whole"
)
TIMEOUT = Setting(
    "PYNCCLX_TIMEOUT",
    default=300.0,
    parse=_seconds,
    accepts="a positive number of seconds",
    text="seconds that a kernel or a call waits for other ranks before it raises an error",
    default_text="`300`",
)
NODE = Setting(  # also read by mpi_bootstrap, which imports nothing of pyncclx
    "PYNCCLX_NODE",
    default="",
    parse=str,
    accepts="any text",
    text="makes pretend nodes: ranks with different values never share memory, as if they ran on different nodes",
    default_text="by host name and network namespace",
)
ENGINE = Setting[str | None](
    "PYNCCLX_ENGINE",
    default=None,
    parse=_one_of("mpi", "nccl"),
    accepts="'mpi' or 'nccl'",
    text="what moves data between nodes: `nccl`, in the order of streams, or `mpi`, while the host waits",
    default_text="`nccl` on GPUs where all ranks have nccl4py and NCCL 2.28 or newer",
)
BLOCKING = _either(
    "PYNCCLX_BLOCKING", "stream", "host", text="the initial value of `comm.blocking`: `stream` or `host`"
)
CHECK = _switch(
    "PYNCCLX_CHECK",
    default=False,
    text="`1`: compare each call with those of the other ranks before it is launched; slow, for finding mistakes. Set "
    "it before the first use of a communicator",
)
CACHE = Setting[tuple[Path, ...]](
    "PYNCCLX_CACHE",
    default=(),
    parse=_folders,
    accepts="a folder, or several with ':' between them",
    text="folder in which compiled kernels are kept; of several folders, separated by `:`, the last one is written "
    "and the others are only read",
    default_text="`pyncclx` in `$XDG_CACHE_HOME` or `~/.cache`",
)
READY = _switch(
    "PYNCCLX_READY",
    default=True,
    text="whether to use the kernels that were compiled when the package was installed; `0`: only those in the "
    "folders of `PYNCCLX_CACHE`",
)
AHEAD = _switch(
    "PYNCCLX_AHEAD",
    default=True,
    text="on GPUs, whether kernels that later calls may need are compiled in the background; `0`: each is compiled at "
    "its first use",
)
VERBOSE = _level(
    "PYNCCLX_VERBOSE",
    text="what is logged to stderr, if the program has no log handlers: `0` warnings, `1` also kernels that take a "
    "second or more to compile, `2` also every other kernel",
)
IPC = _either(
    "PYNCCLX_IPC",
    "descriptors",
    "legacy",
    text="`legacy`: share memory by CUDA IPC handles; for machines where file descriptors of GPU memory do not work",
)
RECORD = _level(
    "PYNCCLX_RECORD",
    text="what the flight recorder keeps: `0` nothing, `1` calls on device arrays, `2` calls on host arrays, too",
)
DUMP = Setting[Path | None](
    "PYNCCLX_DUMP",
    default=None,
    parse=Path,
    accepts="a folder",
    text="folder in which each rank writes a report after a failure, for `python -m pyncclx analyze`; if the ranks "
    "are on several nodes, all of them must see it",
    default_text="`pyncclx-dump` in the folder for temporary files, by user and job",
)
SEED = Setting(
    "PYNCCLX_SEED",
    default=0,
    parse=int,
    accepts="a whole number",
    text="host device: each number other than 0 makes the threads of a block run in another order",
    default_text="`0`",
)
HOSTILE = _switch(
    "PYNCCLX_HOSTILE", default=False, text="host device: `1` delays and reorders stores to other ranks' memory"
)
SANITIZE = _switch(
    "PYNCCLX_SANITIZE",
    default=False,
    text="host device: `1` overwrites the memory of NumPy arrays when it is freed, so that a use after that gives "
    "wrong data",
)

FAULT = Setting[tuple[faults.Fault, ...]](
    "PYNCCLX_FAULT",
    default=(),
    parse=faults.parse,
    accepts=faults.ACCEPTS,
    text="faults to inject, to try what a program does then, such as `rank=2,call=Allreduce,nth=5,do=kill` "
    "(docs/howto/failures.md)",
    default_text="none",
)

#: All settings, in the order of their definition.
SETTINGS: tuple[Setting[Any], ...] = tuple(each for each in list(globals().values()) if isinstance(each, Setting))


def unknown() -> Iterator[str]:
    """Yield a warning for each environment variable PYNCCLX_* that is no setting."""
    names = [setting.name for setting in SETTINGS]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and not name.startswith(TESTS) and name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            yield f"{name} is no setting of pyncclx; did you mean {nearest}? `python -m pyncclx info` lists all"


def foreign(name: str) -> str | None:
    """Return another program's environment variable, such as XDG_CACHE_HOME, or None."""
    return os.environ.get(name)


def set_foreign(name: str, value: str) -> None:
    """Set another program's environment variable, unless it is already set."""
    os.environ.setdefault(name, value)


def swap_foreign(prefixes: tuple[str, ...], variables: Mapping[str, str]) -> dict[str, str]:
    """Replace the variables with these prefixes by others; return the old ones."""
    replaced = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(prefixes)}
    os.environ.update(variables)
    return replaced


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, for child processes."""
    return dict(os.environ)
