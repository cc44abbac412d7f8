"""Builds the driver, once for each sanitizer and each state of the sources, and runs it."""

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyncclx.backends.compilers import gxx
from pyncclx.memory import layout
from pyncclx.system import paths
from pyncclx.system.cache_folders import cache_directory

HERE = Path(__file__).parent
CHANNELS = 2
REPORTS = {f"{tool}_OPTIONS": "exitcode=66:halt_on_error=1" for tool in ("TSAN", "ASAN", "UBSAN")}

# Symbols for the reports, but no variables: these take the compiler longer than the code.
COMMON = ("-std=c++17", "-g1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
COMMON += ("-DPYNCCLX_HOST", "-ffp-contract=off")

Program = Callable[..., subprocess.CompletedProcess[str]]  # runs it: ranks=3, seed=1, …
Write = Callable[[Path], Path]


@pytest.fixture(scope="session")
def build() -> Callable[[Mapping[str, tuple[str, ...]], Write | None], dict[str, Program]]:
    """Return a function that builds programs {name: flags}; `write` makes another copy of the kernels in a folder."""
    if shutil.which("g++") is None:
        pytest.skip("the emulator needs g++")

    def build(flags: Mapping[str, tuple[str, ...]], write: Write | None = None) -> dict[str, Program]:
        with ThreadPoolExecutor(2) as pool:
            programs = pool.map(functools.partial(_built, write=write), flags, flags.values())
            return {name: functools.partial(_run, program) for name, program in zip(flags, programs, strict=True)}

    return build


def _built(name: str, flags: tuple[str, ...], write: Write | None) -> Path:
    """The program, from the cache if its sources have not changed."""
    compiler, version = gxx.compiler()
    own = [path.read_bytes() for path in sorted(HERE.glob("*.*"))]
    key = repr((paths.sources_digest(str(HERE / "driver.cpp")), own, COMMON, flags, version)).encode()
    program = cache_directory() / f"protocol-{name}-{hashlib.sha256(key).hexdigest()[:24]}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            kernels, output = write(Path(folder)) if write else paths.CUDA_DIR, Path(folder) / name
            command = [compiler, *COMMON, *flags, f"-I{kernels}", str(HERE / "driver.cpp"), "-o", str(output)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, "\n".join(re.findall(r".*error:.*", done.stderr)) or done.stderr[-3000:]
            output.replace(program)
    return program


def _run(program: Path, *, ranks: int, kib: int = 0, **options: int) -> subprocess.CompletedProcess[str]:
    """On leases of `kib` KiB; without it, of the least length."""
    command = [*_fixed_addresses(), str(program)]
    command += [f"{key}={value}" for key, value in {"ranks": ranks, **_layout(ranks, kib), **options}.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | REPORTS, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip(f"ThreadSanitizer does not start here: {done.stderr.strip()[-200:]}")
    return done


@functools.cache
def _fixed_addresses() -> tuple[str, ...]:
    """ThreadSanitizer supports fewer memory maps than Linux draws; without randomisation it starts everywhere."""
    command = ("setarch", platform.machine(), "-R")
    allowed = (
        shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    )
    return command if allowed else ()


@functools.cache
def _layout(ranks: int, kib: int) -> dict[str, int]:
    """A lease with two channels, to the byte; the least has chunks of the least length."""
    plans = (layout.plan(each << 10, ranks, CHANNELS) for each in range(kib or 16, 1024))
    chosen = next(plan for plan in plans if plan.channels == CHANNELS)
    names = ("channels", "slot_packets", "chunk_nbytes", "slot_rows", "lines_offset", "packets_offset", "rings_offset")
    return {"nbytes": chosen.end} | {name: getattr(chosen, name) for name in names}
