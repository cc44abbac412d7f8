"""The emulator as a device: memory, the cache of compiled kernels, and the texts of its errors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pyncclx import backends
from pyncclx.backends import host
from pyncclx.backends.compilers import gxx
from pyncclx.errors import NotSupported
from pyncclx.system import notes, paths

SOURCE = """
#include "protocol/signal.cuh"
struct Args { u64* out; u32 value; };
template <u32 kFactor>
__global__ void fill(const __grid_constant__ Args a) { a.out[threadIdx.x] = a.value * kFactor; }
"""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a kernel; compiled kernels go to a cache of this test."""
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "fill.cu"
    path.write_text(SOURCE)
    return path


@needs_compiler
def test_compile_load_launch(source: Path) -> None:
    device, out = host.Device(), np.zeros(4, np.uint64)
    kernels = device.load(device.compile(str(source), ["fill<2>", "fill<3>"]))
    assert sorted(kernels) == ["fill<2>", "fill<3>"]
    params = struct.pack("QIxxxx", out.ctypes.data, 7)
    device.launch(kernels["fill<2>"], 1, 4, params, None)
    assert out.tolist() == [14] * 4
    device.launch(kernels["fill<3>"], 1, 4, bytearray(params), None)
    assert out.tolist() == [21] * 4
    with pytest.raises(ValueError, match=r"takes parameters of \[16\] bytes, got \[12\]"):
        device.launch(kernels["fill<2>"], 1, 4, params[:12], None)
    with pytest.raises(RuntimeError, match="cannot launch 1 blocks of 2000 threads"):
        device.launch(kernels["fill<2>"], 1, 2000, params, None)


@needs_compiler
def test_a_forked_process_launches_too(source: Path) -> None:
    device, memory = host.Device(), host.Device().allocate_shared(4096)
    kernel = device.load(device.compile(str(source), ["fill<2>"]))["fill<2>"]
    device.launch(kernel, 2, 4, struct.pack("QIxxxx", memory.address, 1), None)
    child = os.fork()
    if child == 0:
        device.launch(kernel, 2, 4, struct.pack("QIxxxx", memory.address, 21), None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ctypes.c_uint64.from_address(memory.address).value == 42
    memory.close()


@needs_compiler
def test_cache_is_used_and_notices_changes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = host.Device()
    first = device.compile(str(source), ["fill<2>"])
    compiled: list[bytes] = []
    monkeypatch.setattr(gxx, "_compile", lambda source, instantiations: b"library")

    def compile_anew(*instantiations: str) -> None:
        compiled.append(device.compile(str(source), instantiations))

    compile_anew("fill<2>")
    assert compiled == [first]
    compile_anew("fill<4>")
    monkeypatch.setattr(paths, "sources_digest", lambda file: "the source was edited")
    compile_anew("fill<2>")
    monkeypatch.setattr(gxx, "compiler", lambda: ("g++", "g++ 99"))
    compile_anew("fill<2>")
    assert len(set(compiled)) == 4


@needs_compiler
def test_a_library_of_more_kernels_serves_too(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, every = host.Device(), ["fill<2>", "fill<3>"]
    whole = device.compile(str(source), every)
    assert device.compile(str(source), ["fill<3>"], within=every) == whole
    assert device.compile(str(source), ["fill<3>"]) != whole
    assert device.compile(str(source), ["fill<2>"], within=[*every, "fill<4>"]) != whole


@needs_compiler
def test_the_cache_does_not_depend_on_where_the_checkout_is(source: Path, tmp_path: Path) -> None:
    """The same source in another folder is the same kernel."""
    copy = tmp_path / "elsewhere" / source.name
    copy.parent.mkdir()
    shutil.copyfile(source, copy)
    device = host.Device()
    assert device.compile(str(source), ["fill<2>"]) == device.compile(str(copy), ["fill<2>"])


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_library_is_made_anew(source: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """It would end the process, by SIGBUS, or run."""
    notes._warned.clear()
    library = Path(os.fsdecode(host.Device().compile(str(source), ["fill<2>"])))
    whole = library.read_bytes()
    changed = bytes([*whole[:5000], whole[5000] ^ 1, *whole[5001:]])
    library.write_bytes({"truncated": whole[: len(whole) // 2], "changed": changed, "empty": b""}[damage])
    assert Path(os.fsdecode(host.Device().compile(str(source), ["fill<2>"]))) == library
    assert library.read_bytes()[-8:] == whole[-8:]
    assert list(host.Device().load(os.fsencode(library))) == ["fill<2>"]
    assert [record.message for record in caplog.records] == [f"{library} is damaged, and made anew"]


SLOW_COMPILER = """#!/bin/sh
case "$1" in --version) echo "slow g++ 1"; exit;; esac
echo $$ > "$STARTED.new"; mv "$STARTED.new" "$STARTED"
sh -c 'sleep 300; :' &
sleep 300
"""


def test_the_compiler_ends_with_its_process(source: Path, tmp_path: Path) -> None:
    """All of it, and its files: g++ starts processes of its own."""
    program = tmp_path / "bin" / "g++"
    program.parent.mkdir()
    program.write_text(SLOW_COMPILER)
    program.chmod(0o755)
    started = tmp_path / "started"
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    rank = subprocess.Popen(
        [sys.executable, "-c", f"from pyncclx.backends import host; host.Device().compile({str(source)!r}, ['fill'])"],
        env={**os.environ, "PATH": path, "STARTED": str(started), "PYNCCLX_CACHE": str(tmp_path / "cache")},
    )
    wait_until(started.exists)
    group = int(started.read_text())
    assert os.getpgid(group) == group
    assert list((tmp_path / "cache").glob(".unfinished-*"))
    rank.kill()
    rank.wait()
    wait_until(lambda: not is_alive(group))
    wait_until(lambda: not list((tmp_path / "cache").glob(".unfinished-*")))


def is_alive(group: int) -> bool:
    """Whether a process of the group runs; one that has ended may wait for its parent."""
    states = [path.read_text().rpartition(")")[2].split() for path in process_files()]
    return any(int(fields[2]) == group and fields[0] != "Z" for fields in states)


def process_files() -> Iterator[Path]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                (folder / "stat").read_text()
                yield folder / "stat"


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_full_disk_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "full"
    program.write_text("#!/bin/sh\necho 'cannot write: No space left on device' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(gxx, "compiler", lambda: (str(program), "g++ 1"))
    with pytest.raises(RuntimeError, match=f"{tmp_path}/cache: No space left on device; set PYNCCLX_CACHE"):
        host.Device().compile(str(source), ["fill<2>"])


@needs_compiler
def test_compile_error_shows_the_messages(source: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)g\+\+ cannot compile .*fill\.cu.*missing"):
        host.Device().compile(str(source), ["missing<2>"])


def test_without_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    gxx.compiler.cache_clear()
    with pytest.raises(NotSupported, match="apt-get install g"):
        host.Device().compile(str(source), ["fill<2>"])


def test_shared_memory_is_zeroed_and_shared() -> None:
    device = host.Device()
    shared = device.allocate_shared(10000)
    sent = os.dup(shared.fd)
    peer = device.map_peer(sent, 10000)
    mine = np.frombuffer((ctypes.c_char * 10000).from_address(shared.address), np.uint8)
    theirs = np.frombuffer((ctypes.c_char * 10000).from_address(peer.address), np.uint8)
    assert shared.nbytes == 10000
    assert shared.address % 4096 == 0
    assert shared.address != peer.address
    assert not mine.any()
    mine[9999] = 5
    assert theirs[9999] == 5
    device.fill_zero(peer.address + 9000, 1000)
    assert mine[9999] == 0
    del mine, theirs
    fd = shared.fd
    shared.close()
    shared.close()
    for closed in (fd, sent):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)
    peer.close()
    with pytest.raises(NotSupported, match="travels by descriptor"):
        device.map_peer(b"handle", 10000)


def test_watch() -> None:
    watch = host.Device().allocate_watch(100)
    assert watch.array.dtype == np.uint64
    assert watch.array.nbytes >= 100
    watch.array[1] = 3
    assert ctypes.c_uint64.from_address(watch.address + 8).value == 3
    watch.close()


def test_select(monkeypatch: pytest.MonkeyPatch) -> None:
    backends.select.cache_clear()
    monkeypatch.setenv("PYNCCLX_DEVICE", "host")
    monkeypatch.setenv("PYNCCLX_SEED", "12")
    monkeypatch.setenv("PYNCCLX_HOSTILE", "1")
    device = backends.select()
    assert isinstance(device, host.Device)
    assert backends.select() is device
    assert (device.seed, device.hostile) == (12, True)
    backends.select.cache_clear()
    monkeypatch.delenv("PYNCCLX_DEVICE")
    monkeypatch.setitem(sys.modules, "pyncclx.backends.gpu", None)  # as without CuPy
    with pytest.raises(ImportError, match=r"(?s)cuda13.*PYNCCLX_DEVICE=host"):
        backends.select.__wrapped__()
    monkeypatch.setenv("PYNCCLX_DEVICE", "toaster")
    with pytest.raises(ValueError, match="PYNCCLX_DEVICE is 'toaster'"):
        backends.select()
