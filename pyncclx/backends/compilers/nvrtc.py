"""Compile the kernels of cuda/ with NVRTC, and link them with nvJitLink; no GPU is needed.

Flags: no flush to zero and no fused multiply-add, so that sums and products have the bits of NumPy's and MPI's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cuda.bindings import nvjitlink, nvrtc

from ...system import cache_folders
from ...system.paths import CUDA_DIR, sources_digest
from . import cache

FLAGS = ("-std=c++17", "--fmad=false", "-default-device", f"-I{CUDA_DIR}")


@dataclass(frozen=True)
class Binary:
    """Machine code of some kernels for one architecture, or the LTO-IR that it is made from."""

    cubin: bytes  # or LTO-IR
    lowered_names: dict[str, str]  # instantiation -> symbol
    log: str = ""

    def dump(self) -> bytes:
        """Return the binary, without its log, as bytes for a file or another process."""
        return json.dumps(self.lowered_names).encode() + b"\0" + self.cubin

    @classmethod
    def load(cls, image: bytes) -> Binary:
        """Return what `dump` was called on."""
        names, _, cubin = image.partition(b"\0")
        return cls(cubin, json.loads(names))


def compile_cached(file: str, instantiations: Sequence[str], architecture: str, *options: str) -> Binary:
    """Return what `compile_kernels` returns, from the cache on disk if it is there."""
    make = partial(compile_kernels, file, instantiations, architecture, *options)
    return _cached(make, (_version(),), file, tuple(instantiations), architecture, *options)


def compile_linked(file: str, instantiations: Sequence[str], architecture: str, code: bytes) -> Binary:
    """Return kernels of cuda/`file` linked with a function that they call, from the cache on disk if it is there.

    Parameters
    ----------
    code : bytes
        The function as LTO-IR: it is optimised with the kernels, and inlined.
    """

    def make() -> Binary:
        return link(compile_kernels(file, instantiations, architecture, "-dlto"), code, architecture)

    return _cached(make, (_version(), nvjitlink.version()), file, tuple(instantiations), architecture, code)


def _cached(make: Callable[[], Binary], versions: tuple[Any, ...], file: str, *key: object) -> Binary:
    """Return what `make` returns, or has returned for the same compilers, sources and `key`.

    What is built for others serves all compilers of the same major version of CUDA, whose drivers load it.
    """
    whole = (sources_digest(file), FLAGS[:-1], file, *key)
    for_others = cache.file_name(Path(file).stem, (_version()[0], *whole), ".cubin")
    own = cache.file_name(Path(file).stem, (versions, *whole), ".cubin")
    name = for_others if cache_folders.is_for_others() or cache.find(for_others) is not None else own
    return Binary.load(cache.read_or_make(name, lambda: make().dump()))


def _version() -> Any:
    return _checked(nvrtc.nvrtcVersion())


def link(kernels: Binary, code: bytes, architecture: str, *options: str) -> Binary:
    """Link LTO-IR of kernels with that of the function that they call.

    Raises
    ------
    RuntimeError
        With the linker's log.
    """
    # -fma=0 as in FLAGS: the code that Numba made leaves it open.
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
    """Compile kernels of cuda/`file` for `architecture` ("sm_90"); to LTO-IR with the option "-dlto".

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
    else:
        cubin = _output(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return Binary(cubin, lowered, text)


def _output(program: Any, size: Any, get: Any) -> bytes:
    data = bytearray(int(_checked(size(program))))  # not bytes: Python shares objects of one byte
    _checked(get(program, data))
    return bytes(data)


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {status.name}")
    return values[0] if len(values) == 1 else values
