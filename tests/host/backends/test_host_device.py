"""The emulator as a device: memory, the cache of compiled kernels, and the texts of its errors."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from pyncclx import backends
from pyncclx.backends import host
from pyncclx.backends.compilers import gxx
from pyncclx.errors import NotSupported
from pyncclx.system import paths

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
    built: list[Path] = []
    monkeypatch.setattr(gxx, "_build", lambda source, instantiations, library: built.append(library))
    assert device.compile(str(source), ["fill<2>"]) == first
    assert built == []
    device.compile(str(source), ["fill<4>"])
    source.write_text(SOURCE + "// edited\n")
    device.compile(str(source), ["fill<2>"])
    monkeypatch.setattr(paths, "sources_digest", lambda file: "a header was edited")
    device.compile(str(source), ["fill<2>"])
    assert len(set(built) - {Path(os.fsdecode(first))}) == 3


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


def test_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYNCCLX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache_directory() == tmp_path / "pyncclx"
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "own"))
    assert paths.cache_directory() == tmp_path / "own"
    assert (tmp_path / "own").is_dir()
