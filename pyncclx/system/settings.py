"""All environment variables of pyncclx: name, type, default, unit and description.

Each is read when it is needed, not at import. `info` and the documentation print this list.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterator
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
        """Return the value that the environment sets, or the default.

        Raises
        ------
        ValueError
            The variable is set to an invalid value.
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


def _flag(text: str) -> bool:
    return {"1": True, "0": False}[_one_of("0", "1")(text)]


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(each) for each in text.split(os.pathsep) if each)


def _level(text: str) -> int:
    return int(_one_of("0", "1", "2")(text))


def _switch(name: str, *, default: bool, text: str) -> Setting[bool]:
    """Return a setting that is on or off."""
    return Setting(name, default, _flag, "1 or 0", text, "on" if default else "off")


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
    text="device memory of a process for communication, in bytes or with `K`, `M`, `G`; "
    "with less, fewer messages travel as lines",
    default_text="`96M`",
)
CHANNELS = Setting[int | None](
    "PYNCCLX_CHANNELS",
    default=None,
    parse=_positive,
    accepts="a number of blocks, from 1 up to the multiprocessors of the GPU",
    text="the most blocks of an operation on a GPU, up to one for each multiprocessor, divided among the ranks that "
    "share it: more are faster, and leave less of the GPU to other kernels",
    default_text="`64`",
)
LINES = _switch(
    "PYNCCLX_LINES", default=True, text="`0`: no message travels as lines, where NVLink does not carry 128 bytes whole"
)
TIMEOUT = Setting(
    "PYNCCLX_TIMEOUT",
    default=300.0,
    parse=_seconds,
    accepts="a positive number of seconds",
    text="seconds that a kernel waits for a peer before it gives up",
    default_text="`300`",
)
NODE = Setting(  # read by mpi_bootstrap, which imports nothing of pyncclx
    "PYNCCLX_NODE",
    default="",
    parse=str,
    accepts="any text",
    text="makes pretend nodes: ranks in which it differs never share memory, as if they ran on different nodes",
    default_text="found out",
)
ENGINE = Setting[str | None](
    "PYNCCLX_ENGINE",
    default=None,
    parse=_one_of("mpi", "nccl"),
    accepts="'mpi' or 'nccl'",
    text="what moves data between nodes: `nccl`, which follows streams, or `mpi`",
    default_text="`nccl` on GPUs where all ranks have nccl4py and NCCL 2.28 or newer",
)
BLOCKING = Setting(
    "PYNCCLX_BLOCKING",
    default="stream",
    parse=_one_of("stream", "host"),
    accepts="'stream' (the default) or 'host'",
    text="the initial value of `comm.blocking`: `stream` or `host`",
    default_text="`stream`",
)
CHECK = _switch(
    "PYNCCLX_CHECK",
    default=False,
    text="`1` when a communicator is first used: compare its calls between the ranks before they are launched; "
    "slow, for finding mistakes",
)
CACHE = Setting[tuple[Path, ...]](
    "PYNCCLX_CACHE",
    default=(),
    parse=_folders,
    accepts="a folder, or several with ':' between them",
    text="folder of compiled kernels; before it, each with a `:`, folders that are only read",
    default_text="`pyncclx` in `$XDG_CACHE_HOME` or `~/.cache`",
)
READY = _switch(
    "PYNCCLX_READY",
    default=True,
    text="whether kernels are used that were compiled when the package was installed; `0`: only those of these folders",
)
AHEAD = _switch(
    "PYNCCLX_AHEAD",
    default=True,
    text="GPUs: whether kernels that the next calls may need are compiled in the background once one has been; `0`: "
    "each at its first use",
)
VERBOSE = Setting(
    "PYNCCLX_VERBOSE",
    default=1,
    parse=_level,
    accepts="0, 1 or 2",
    text="what is reported on stderr, if the program has no log handlers: `0` warnings, `1` kernels that take a second "
    "or more to compile, `2` each kernel",
    default_text="`1`",
)
IPC = Setting(
    "PYNCCLX_IPC",
    default="descriptors",
    parse=_one_of("descriptors", "legacy"),
    accepts="'descriptors' (the default) or 'legacy'",
    text="`legacy`: share memory by CUDA IPC, where file descriptors of GPU memory do not work",
    default_text="`descriptors`",
)
RECORD = Setting(
    "PYNCCLX_RECORD",
    default=1,
    parse=_level,
    accepts="0, 1 or 2",
    text="what the flight recorder keeps: `0` nothing, `1` calls on device arrays, `2` those with host arrays, too",
    default_text="`1`",
)
DUMP = Setting[Path | None](
    "PYNCCLX_DUMP",
    default=None,
    parse=Path,
    accepts="a folder",
    text="folder for what each rank writes after a failure, for `python -m pyncclx analyze`; ranks on several nodes "
    "need one that all of them see",
    default_text="`pyncclx-dump` in the folder for temporary files, by user and job",
)
SEED = Setting(
    "PYNCCLX_SEED",
    default=0,
    parse=int,
    accepts="a whole number",
    text="host device: a number other than 0 permutes the threads of a block, differently for each number",
    default_text="`0`",
)
HOSTILE = _switch(
    "PYNCCLX_HOSTILE", default=False, text="host device: `1` delays and reorders what ranks write to each other"
)
SANITIZE = _switch(
    "PYNCCLX_SANITIZE",
    default=False,
    text="host device: `1` overwrites the memory of NumPy arrays when it is freed: what still uses it has wrong data",
)

FAULT = Setting[tuple[faults.Fault, ...]](
    "PYNCCLX_FAULT",
    default=(),
    parse=faults.parse,
    accepts=faults.ACCEPTS,
    text="faults to try what a program does then, such as `rank=2,call=Allreduce,nth=5,do=kill` "
    "([fault injection](../howto/failures.md#try-it))",
    default_text="none",
)

SETTINGS: tuple[Setting[Any], ...] = (
    *(DEVICE, HEAP, CHANNELS, LINES, TIMEOUT, NODE, ENGINE, BLOCKING, CHECK, CACHE, READY),
    *(AHEAD, VERBOSE, IPC, RECORD, DUMP, SEED, HOSTILE, SANITIZE, FAULT),
)


def unknown() -> Iterator[str]:
    """Yield a sentence for each environment variable PYNCCLX_* that is no setting."""
    names = [setting.name for setting in SETTINGS]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and not name.startswith(TESTS) and name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            yield f"{name} is no setting of pyncclx; did you mean {nearest}? `python -m pyncclx info` lists all"


def foreign(name: str) -> str | None:
    """Return another program's environment variable, such as XDG_CACHE_HOME, or None."""
    return os.environ.get(name)


def set_foreign(name: str, value: str) -> None:
    """Set another program's environment variable, unless it is set."""
    os.environ.setdefault(name, value)


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, for programs that it starts."""
    return dict(os.environ)
