"""Compile the kernels of cuda/ with NVRTC and nvJitLink; this needs no GPU.

Kernels are compiled without flush to zero and fused multiply-add, so sums and products are bitwise those of NumPy and
MPI.

An architecture is a GPU's, "sm_90", or a virtual one, "compute_90". For a virtual one NVRTC makes PTX, which the driver
compiles at load time for that architecture or a newer one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cuda.bindings import nvjitlink, nvrtc

from ...system import cache_folders
from ...system.paths import CUDA_DIR, sources_digest
from . import cache

FLAGS = ("-std=c++17", "--fmad=false", "-default-device", f"-I{CUDA_DIR}")
# Prefix of the name of an architecture whose code is PTX.
VIRTUAL = "compute_"


@dataclass(frozen=True)
class Binary:
    """Machine code, PTX or LTO-IR of some kernels for one architecture."""

    cubin: bytes  # cubin, PTX or LTO-IR
    lowered_names: dict[str, str]  # instantiation -> symbol
    log: str = ""

    def dump(self) -> bytes:
        """Return the binary without its log as bytes, for a file or another process."""
        return json.dumps(self.lowered_names).encode() + b"\0" + self.cubin

    @classmethod
    def load(cls, image: bytes) -> Binary:
        """Return the binary that `dump` has written to `image`."""
        names, _, cubin = image.partition(b"\0")
        return cls(cubin, json.loads(names))


def compile_cached(file: str, instantiations: Sequence[str], architecture: str, *options: str) -> Binary:
    """Return compiled kernels, from the cache on disk if possible.

    Cached code for the first architecture of the GPU's generation is used too (see `targets_of`). For a GPU that NVRTC
    does not support yet, the result is PTX.
    """
    target = target_of(file, instantiations, architecture, *options)
    make = partial(compile_kernels, file, instantiations, target, *options)
    return _cached(make, _name(file, instantiations, target, *options))


def compile_beside(
    file: str, instantiations: Sequence[str], architecture: str, writing: AbstractContextManager[object]
) -> bool:
    """Compile kernels in the background; return whether they are in the cache.

    Parameters
    ----------
    architecture : str
        Return value of `target_of`.
    writing : context manager
        Context to enter while the file is written.
    """
    name = _name(file, instantiations, architecture)
    if cache.find(name) is not None:
        return True
    binary = compile_kernels(file, instantiations, architecture)
    with writing:
        return cache.keep_beside(name, binary.dump())


def target_of(file: str, instantiations: Sequence[str], architecture: str, *options: str) -> str:
    """Return the best architecture that has cached kernels, otherwise the best of all."""
    targets = [architecture] if cache_folders.is_for_others() else targets_of(architecture, supported())
    ready = (each for each in targets if is_cached(file, instantiations, each, *options))
    return next(ready, targets[0])


def is_cached(file: str, instantiations: Sequence[str], architecture: str, *options: str) -> bool:
    """Return whether the cache has kernels for exactly this architecture."""
    return cache.find(_name(file, instantiations, architecture, *options)) is not None


def compile_linked(file: str, instantiations: Sequence[str], architecture: str, code: bytes) -> Binary:
    """Return kernels of cuda/`file` linked with a function that they call.

    The kernels come from the cache on disk if possible.

    Parameters
    ----------
    code : bytes
        The function as LTO-IR. The linker inlines it, and optimizes it with the kernels.
    """

    def make() -> Binary:
        return link(compile_kernels(file, instantiations, architecture, "-dlto"), code, architecture)

    versions = _version(), nvjitlink.version()
    return _cached(make, _name(file, instantiations, architecture, code, versions=versions))


def _cached(make: Callable[[], Binary], name: str) -> Binary:
    return Binary.load(cache.read_or_make(name, lambda: make().dump()))


def _name(
    file: str,
    instantiations: Sequence[str],
    architecture: str,
    *options: str | bytes,
    versions: tuple[Any, ...] | None = None,
) -> str:
    """Return the cache file's name for these sources, options and compilers.

    Code built for other machines has a name with CUDA's major version only, because any driver of that version loads
    it. Return that name while such code is being built, or if the cache has it. Otherwise return a name with the full
    versions.
    """
    whole = (sources_digest(file), FLAGS[:-1], file, tuple(instantiations), architecture, *options)
    for_others = cache.file_name(Path(file).stem, (_version()[0], *whole), ".cubin")
    own = cache.file_name(Path(file).stem, (versions or (_version(),), *whole), ".cubin")
    return for_others if cache_folders.is_for_others() or cache.find(for_others) is not None else own


@functools.cache
def supported() -> tuple[int, ...]:
    """Return the architecture numbers that NVRTC supports, in ascending order."""
    return tuple(sorted(_checked(nvrtc.nvrtcGetSupportedArchs())))


def _version() -> Any:
    return _checked(nvrtc.nvrtcVersion())


def link(kernels: Binary, code: bytes, architecture: str, *options: str) -> Binary:
    """Link LTO-IR of kernels with LTO-IR of the function that they call.

    Raises
    ------
    RuntimeError
        With the linker's log.
    """
    # -fma=0 corresponds to --fmad=false of FLAGS, which Numba's code does not set.
    flags = [f"-arch={architecture}", "-lto", "-fma=0", *options]
    linker = nvjitlink.create(len(flags), flags)
    try:
        for name, part in (("kernels", kernels.cubin), ("operator", code)):
            nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, part, len(part), name)
        nvjitlink.complete(linker)
    except nvjitlink.nvJitLinkError as error:
        log = _log(linker, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
        raise RuntimeError(f"nvJitLink could not link {', '.join(kernels.lowered_names)}: {error}\n{log}") from error
    cubin = bytearray(nvjitlink.get_linked_cubin_size(linker))
    nvjitlink.get_linked_cubin(linker, cubin)
    log = _log(linker, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
    nvjitlink.destroy(linker)
    return Binary(bytes(cubin), kernels.lowered_names, log)


def _log(linker: int, size: Any, get: Any) -> str:
    data = bytearray(size(linker))
    get(linker, data)
    return data.decode(errors="replace").strip("\0\n")


def compile_kernels(file: str, instantiations: Sequence[str], architecture: str, *options: str) -> Binary:
    """Compile kernels of cuda/`file` for an architecture; to LTO-IR with "-dlto".

    Raises
    ------
    RuntimeError
        With the compiler's log.
    """
    source = f'#include "{file}"\n'.encode()
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"pyncclx.cu", 0, [], []))
    for name in instantiations:
        _checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    flags = [flag.encode() for flag in (*FLAGS, f"-arch={architecture}", *options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    log = _output(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    text = log.decode(errors="replace").strip("\0\n")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC could not compile {file} ({', '.join(instantiations)}):\n{text}")
    lowered = {name: _checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in instantiations}
    if "-dlto" in options:
        cubin = _output(program, nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR)
    elif architecture.startswith(VIRTUAL):
        cubin = _output(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    else:
        cubin = _output(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return Binary(cubin, lowered, text)


def targets_of(architecture: str, known: Sequence[int]) -> list[str]:
    """Return the architectures whose code runs on a GPU, the best first.

    A GPU runs code of its own architecture and of the first architecture of its generation. For a GPU that NVRTC does
    not support yet, return the older architectures, whose PTX it can run.

    Parameters
    ----------
    known : sequence of int
        The architecture numbers that NVRTC supports, in ascending order.

    Examples
    --------
    >>> targets_of("sm_89", (80, 89, 90))
    ['sm_89', 'sm_80']
    >>> targets_of("sm_130", (80, 89, 90))
    ['compute_90', 'compute_89', 'compute_80']
    """
    number = int(architecture.rpartition("_")[2])
    if number not in known and not architecture.startswith(VIRTUAL):
        older = [f"{VIRTUAL}{each}" for each in reversed(known) if each < number]
        if older:
            return older
    first = f"sm_{number // 10}0"
    return [architecture] if architecture in (first, f"{VIRTUAL}{number}") else [architecture, first]


def _output(program: Any, size: Any, get: Any) -> bytes:
    # NVRTC writes to this memory. It is a bytearray because Python shares bytes objects of length one.
    data = bytearray(int(_checked(size(program))))
    _checked(get(program, data))
    return bytes(data)


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {status.name}")
    return values[0] if len(values) == 1 else values
