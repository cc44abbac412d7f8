"""The emulator keeps CUDA's guarantees, reports what would hang on a GPU, and makes reordered stores visible."""

from __future__ import annotations

import ctypes
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyncclx.backends import host
from pyncclx.backends.host.kernels import Kernel, Launch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

NAMES = [
    *("indices", "reverse", "votes", "shuffles", "dynamic", "packs", "misaligned", "atomics", "clocks", "matches"),
    *("chase<true>", "chase<false>", "stuck", "deadlock", "order"),
    *("send<kByBlock>", "send<kByWarp>", "send<kRelaxed>", "send<kNoBarrier>", "receive"),
]

Words = npt.NDArray[np.uint64]
Run = Callable[..., Words]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """Compile all kernels of emulator.cu, into a cache of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNCCLX_CACHE", str(tmp_path_factory.mktemp("cache")))
        device = host.Device()
        return device.load(device.compile(str(Path(__file__).with_name("emulator.cu")), NAMES))


@pytest.fixture(params=[(0, False), (7, False), (7, True)], ids=["in order", "permuted", "hostile"])
def run(kernels: dict[str, Kernel], request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a kernel and returns the words it wrote."""
    seed, hostile = request.param

    def run(name: str, grid: int, block: int, words: int) -> Words:
        device = host.Device(seed=seed, hostile=hostile, watchdog_s=20.0)
        out = zeros(words)
        device.launch(kernels[name], grid, block, struct.pack("QQQ", out.ctypes.data, 0, 0), None)
        return out

    return run


def zeros(words: int) -> Words:
    """Return zeros at an address for 16-byte accesses."""
    raw = np.zeros(words + 1, np.uint64)
    return raw[raw.ctypes.data % 16 // 8 :][:words]


def test_indices(run: Run) -> None:
    out = run("indices", 3, 40, 480).reshape(3, 40, 4)
    for block in range(3):
        for thread in range(40):
            assert out[block, thread].tolist() == [block, thread, 3, 40]


def test_syncthreads(run: Run) -> None:
    assert run("reverse", 2, 64, 128).reshape(2, 64).tolist() == [list(range(65, 1, -1))] * 2


def test_block_votes_without_threads_that_left(run: Run) -> None:
    assert run("votes", 1, 64, 256).reshape(64, 4).tolist() == [[16, 1, 0, 1]] * 48 + [[0] * 4] * 16


def test_shuffles_and_votes(run: Run) -> None:
    for thread, got in enumerate(run("shuffles", 1, 64, 512).reshape(64, 8).tolist()):
        lane = thread % 32
        up = lane if lane % 16 < 3 else lane - 3
        assert got[:4] == [5 << 40, up, min(lane + 1, 31), lane ^ 7]
        assert got[4:6] == [0xAAAAAAAA, 2]
        assert got[6] == (lane ^ 1 if lane < 8 else lane)
        assert got[7] == 0xFFFFFFFF


def test_lanes_that_offer_the_same(run: Run) -> None:
    alike = [sum(1 << other for other in range(32) if other % 5 == lane % 5) for lane in range(32)]
    assert run("matches", 1, 64, 64).tolist() == alike * 2


def test_dynamic_shared_memory(kernels: dict[str, Kernel]) -> None:
    out = zeros(64)
    how = Launch(grid=1, block=64, shared_nbytes=512, watchdog_s=20.0)
    arguments = (ctypes.c_char_p * 1)(struct.pack("QQQ", out.ctypes.data, 0, 0))
    assert kernels["dynamic"].run(ctypes.byref(how), arguments) == 0
    assert out.tolist() == [i ^ 1 for i in range(64)]


def test_sixteen_byte_accesses(run: Run) -> None:
    out = run("packs", 1, 32, 128).reshape(32, 4)
    assert out.tolist() == [[i + 100, 1, i, 1] for i in range(32)]


def test_misaligned_address_is_reported(run: Run) -> None:
    with pytest.raises(RuntimeError, match="misaligned, block 0: misaligned address"):
        run("misaligned", 1, 1, 4)


def test_atomics(run: Run) -> None:
    out = run("atomics", 4, 64, 8)
    assert out[0] == 256
    assert out[1:2].view(np.float32)[0] == 128.0
    assert out[2:3].view(np.int32)[0] == 0  # the largest candidate is -745
    assert 1 <= out[3] <= 256
    assert out[4:7].tolist() == [1, 7, 8]


def test_clock(run: Run) -> None:
    out = run("clocks", 1, 1, 2)
    assert 1000 <= out[1] - out[0] < 60 * 10**9  # nanoseconds


@pytest.mark.parametrize("kernel", ["chase<true>", "chase<false>"])
def test_blocks_wait_for_each_other(run: Run, kernel: str) -> None:
    assert run(kernel, 3, 40, 1).tolist() == [120]


def test_stuck_kernel_is_reported(kernels: dict[str, Kernel], capfd: pytest.CaptureFixture[str]) -> None:
    device, out = host.Device(watchdog_s=0.1), zeros(1)
    text = r"stuck, block .: stuck: 1 threads poll, 63 wait at __syncthreads"
    with pytest.raises(RuntimeError, match=text):
        device.launch(kernels["stuck"], 2, 64, struct.pack("QQQ", out.ctypes.data, 0, 0), None)
    assert "emulated kernel stuck" in capfd.readouterr().err
    out[0] = 1  # and the device goes on to work
    device.launch(kernels["stuck"], 2, 64, struct.pack("QQQ", out.ctypes.data, 0, 0), None)


def test_deadlock_is_reported_at_once(run: Run) -> None:
    with pytest.raises(
        RuntimeError, match="deadlock: 0 threads poll, 1 wait at __syncthreads, 0 at a group's barrier, 31 at"
    ):
        run("deadlock", 1, 32, 1)


def test_seed_decides_the_schedule(kernels: dict[str, Kernel]) -> None:
    def orders(seed: int) -> list[list[int]]:
        out = zeros(512)
        device = host.Device(seed=seed)
        device.launch(kernels["order"], 2, 64, struct.pack("QQQ", out.ctypes.data, 0, 0), None)
        return out.reshape(2, 4, 64).astype(int).tolist()

    one = orders(1)
    assert orders(1) == one
    assert orders(2) != one
    assert one[0] != one[1]  # each block has its own
    assert one[0][1] != one[0][2]  # each pass too
    assert all(sorted(order) == list(range(64)) for block in one for order in block)
    assert orders(0)[0] == orders(0)[1]  # without a seed every block has the same


def count_stale(kernels: dict[str, Kernel], way: str, *, hostile: bool, rounds: int = 100) -> int:
    """Let two ranks, a Python thread each, pass messages; return how many stale words the receiver saw."""
    shared, stale = zeros(2 + 128), zeros(1)
    block = 32 if way == "kByWarp" else 64
    for value in range(1, rounds + 1):
        params = struct.pack("QQQ", stale.ctypes.data, shared.ctypes.data, value)
        sender = host.Device(seed=2 * value, hostile=hostile, watchdog_s=20.0)
        receiver = host.Device(seed=2 * value + 1, hostile=hostile, watchdog_s=20.0)
        peer = threading.Thread(target=receiver.launch, args=(kernels["receive"], 1, block, params, None))
        peer.start()
        sender.launch(kernels[f"send<{way}>"], 1, block, params, None)
        peer.join()
    return int(stale[0])


@pytest.mark.parametrize("way", ["kByBlock", "kByWarp"])
def test_hostile_memory_respects_releases(kernels: dict[str, Kernel], way: str) -> None:
    assert count_stale(kernels, way, hostile=True) == 0


@pytest.mark.parametrize("way", ["kRelaxed", "kNoBarrier"])
def test_hostile_memory_shows_missing_order(kernels: dict[str, Kernel], way: str) -> None:
    assert count_stale(kernels, way, hostile=True) > 0


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_libraries_that_are_not_used_give_their_stacks_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may load hundreds of libraries; each keeps stacks for the threads that have launched its kernels."""
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path))
    monkeypatch.setattr(host.kernels, "MOST_LIBRARIES", 2)
    device, source = host.Device(), str(Path(__file__).with_name("emulator.cu"))
    libraries = [device.compile(source, ["indices", other]) for other in ("clocks", "packs", "dynamic", "votes")]
    kernels = [device.load(library)["indices"] for library in libraries]
    out = zeros(4 * 64 * 4)
    counts = []
    for _ in range(3):
        for kernel in kernels:
            device.launch(kernel, 4, 64, struct.pack("QQQ", out.ctypes.data, 0, 0), None)
            counts.append(mappings())
    stacks = 4 * 64 * 2  # of one library: four blocks of 64 threads, a stack and its guard each
    assert max(counts) - min(counts) < 2 * stacks
    device.launch(kernels[0], 4, 64, struct.pack("QQQ", out.ctypes.data, 0, 0), None)
    assert out.reshape(4, 64, 4)[3, 63].tolist() == [3, 63, 4, 64]


def test_stacks_of_many_threads_take_few_mappings(kernels: dict[str, Kernel]) -> None:
    """Each stream of the host device is a thread, and each thread that launches has stacks of its own."""
    outs, before, most, all_there = [zeros(4 * 64 * 4) for _ in range(12)], mappings(), [], threading.Barrier(12)

    def launch(out: Words) -> None:
        host.Device().launch(kernels["indices"], 4, 64, struct.pack("QQQ", out.ctypes.data, 0, 0), None)
        all_there.wait()
        most.append(mappings())
        all_there.wait()

    threads = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    guards = 256 * 2
    assert max(most) - before < 2 * guards, "with a guard for each stack there are 6,144"
    assert all(out.reshape(4, 64, 4)[3, 63].tolist() == [3, 63, 4, 64] for out in outs)
