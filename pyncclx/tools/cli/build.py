"""python -m pyncclx build: compile kernels before a program needs them.

The kernels can be for this machine, a cluster or a container image. No GPU is needed. To use them, put their folder
before the user's own in PYNCCLX_CACHE: /opt/pyncclx-kernels:/home/me/.cache/pyncclx
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePath

from ...arrays import datatypes
from ...backends import host
from ...launch import kernels
from ...launch.sources import FILES, Template, instantiation
from ...operators import ops
from ...system import cache_folders

HOST = "host"
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "bytes")
OPERATORS = ("SUM", "MAX", "MIN", "PROD")
# The last one is PTX, for newer GPUs.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120", "compute_120")
# Kernels that move bytes of any type.
_BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Unit:
    """Kernels that are compiled together."""

    architecture: str
    file: str
    kernels: Sequence[str]
    template: Template

    def compile(self) -> None:
        """Compile the kernels unless the folder has them."""
        if self.architecture == HOST:
            kernels.compile_image(host.Device(), self.file, self.kernels, self.template)
            return
        # cuda-bindings is optional.
        nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
        names = [instantiation(kernel, *self.template) for kernel in self.kernels]
        nvrtc.compile_cached(self.file, names, self.architecture)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    types = [*datatypes.TABLE, _BYTES]
    names = [PurePath(file).stem for file, source in FILES.items() if source.templates()]
    add = parser.add_argument
    add("--types", nargs="+", choices=types, default=TYPES, metavar="TYPE", help=f"default: {' '.join(TYPES)}")
    add("--ops", nargs="+", choices=list(ops.TABLE), default=OPERATORS, metavar="OP", help="default: SUM MAX MIN PROD")
    add("--operations", nargs="+", choices=names, default=names, metavar="NAME", help="names of files of cuda/; all")
    add("--arch", nargs="+", default=ARCHITECTURES, help=f"or host; default: {' '.join(ARCHITECTURES)}")
    add("--output", type=Path, help="the folder; default: the cache's")
    add("--jobs", type=int, default=os.cpu_count(), help="kernels compiled at once; default: a processor each")


def run(arguments: argparse.Namespace) -> None:
    """Compile the kernels that the arguments select."""
    folder = arguments.output or cache_folders.cache_directory()
    cache_folders.use(folder)
    units = list(selected(arguments.arch, arguments.operations, arguments.types, arguments.ops))
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as threads:
        running = [threads.submit(unit.compile) for unit in units]
        try:
            for each in _counted(as_completed(running), len(units)):
                each.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    sizes = [path.stat().st_size for path in folder.iterdir() if path.suffix in (".so", ".cubin")]
    print(f"{len(units)} kernels in {time.monotonic() - began:.1f} s; {folder} has {sum(sizes) / 1e6:.1f} MB")


def _counted(done: Iterable[Future[None]], total: int) -> Iterable[Future[None]]:
    """Count on the terminal if tqdm is installed."""
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return done
    counted: Iterable[Future[None]] = tqdm(done, total=total, unit="kernel", disable=None)
    return counted


def selected(
    architectures: Sequence[str], operations: Sequence[str], types: Sequence[str], operators: Sequence[str]
) -> Iterator[Unit]:
    """Yield the units to compile, for names in the form of the command line."""
    is_wanted = _filter(types, operators)
    for architecture in architectures:
        for file, source in FILES.items():
            if PurePath(file).stem in operations:
                together = kernels.compiled_together(file, source.kernels, architecture == HOST)
                for template in filter(is_wanted, source.templates()):
                    yield from (Unit(architecture, file, group, template) for group in together)


def _filter(types: Sequence[str], operators: Sequence[str]) -> Callable[[Template], bool]:
    """Return a function that checks a kernel's template arguments.

    All element types and operators of a kernel must be among the given ones.
    """
    wanted = {datatypes.TABLE[name].cxx for name in types if name != _BYTES}
    wanted |= {ops.TABLE[name].cxx for name in operators}
    known = {row.cxx for row in datatypes.TABLE.values()} | {op.cxx for op in ops.TABLE.values()}

    def is_wanted(template: Template) -> bool:
        return wanted.issuperset(known.intersection(template)) if template else _BYTES in types

    return is_wanted
