"""ThreadSanitizer and AddressSanitizer report wrong emulated kernels, and nothing in correct ones.

The ranks are threads of one program, since ThreadSanitizer cannot look into another process.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pyncclx.system.paths import CUDA_DIR

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

PROGRAM = r"""
#include "protocol/signal.cuh"
struct Args { Pack* data; u64* flag; Pack* out; u32 rank, round; };

// Rank 0 puts; rank 1 waits, and hands what it got to other threads through shared memory. Block b of one
// rank talks to block b of the other.
enum Bug { kNone, kNoRelease, kNoBarrier, kFence, kWarp, kNoWarp, kEarlyFence, kOldFence };
template <Bug kBug>
__global__ void pass(const __grid_constant__ Args a) {
    __shared__ u64 got[64];
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    u64* flag = a.flag + blockIdx.x;
    if (a.rank == 0) {
        if (kBug == kOldFence) fence_sys();
        put_pack(a.data + i, Pack{a.round + i, 1});
        if (kBug == kEarlyFence) fence_sys();  // of each thread, and not of the one that signals for all
        __syncthreads();
        if (threadIdx.x != 0) return;
        if (kBug == kFence) fence_sys();
        if (kBug == kNoRelease || kBug == kFence || kBug >= kEarlyFence) st_relaxed_sys(flag, a.round);
        else st_release_sys(flag, a.round);
    } else {
        if (threadIdx.x == 0) {
            while (ld_relaxed_sys(flag) != a.round) spin_hint();
            if (kBug == kFence) fence_sys(); else ld_acquire_sys(flag);
        }
        __syncthreads();
        got[threadIdx.x] = get_pack(a.data + i).x;
        if (kBug == kWarp) __syncwarp();
        else if (kBug == kNoWarp) __shfl_sync(0xffffffffu, 1, 0);  // orders no memory
        else if (kBug != kNoBarrier) __syncthreads();
        a.out[i].x = got[threadIdx.x ^ 31];
    }
}
EMULATE(none, pass<kNone>)
EMULATE(no_release, pass<kNoRelease>)
EMULATE(no_barrier, pass<kNoBarrier>)
EMULATE(fence, pass<kFence>)
EMULATE(warp, pass<kWarp>)
EMULATE(no_warp, pass<kNoWarp>)
EMULATE(early_fence, pass<kEarlyFence>)
EMULATE(old_fence, pass<kOldFence>)

// Each rank is a thread; what they share is the memory in Args, and nothing else.
int main(int argc, char** argv) {
    static Pack data[2][128], out[128];
    static u64 flag[2][2], taken;
    const char* names[] = {"none", "no_release", "no_barrier", "fence", "warp", "no_warp", "early_fence", "old_fence"};
    int (*kernels[])(const Launch*, const void* const*) = {none, no_release, no_barrier, fence,
                                                           warp, no_warp,    early_fence, old_fence};
    int which = 0, failed = 0, wrong = 0;
    while (argc > 1 && strcmp(argv[1], names[which]) != 0) ++which;
    auto rank = [&](u32 me) {
        for (u32 round = 1; round <= 5; ++round) {
            const Launch how{2, 64, 0, argc > 2, round * 2 + me, 30.0};
            if (me == 0) while (__atomic_load_n(&taken, __ATOMIC_ACQUIRE) != round - 1) sched_yield();
            const Args args{data[round % 2], flag[round % 2], out, me, round};
            const void* pointers[] = {&args};
            if (kernels[which](&how, pointers) != 0) __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
            if (me == 0) continue;
            for (u32 i = 0; i < 128; ++i) wrong += out[i].x != round + (i ^ 31);
            __atomic_store_n(&taken, round, __ATOMIC_RELEASE);
        }
    };
    std::thread peer(rank, 1);
    rank(0);
    peer.join();
    printf("failed %d\n", failed);
    return failed != 0;
}
"""

HELLO = "#include <thread>\nint main() { std::thread([] {}).join(); }\n"


def build(folder: Path, name: str, text: str, *flags: str) -> Path:
    """Compile a program, warnings being errors."""
    source, program = folder / f"{name}.cpp", folder / name
    source.write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-DPYNCCLX_HOST"]
    command += [f"-I{CUDA_DIR}", *flags, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def start(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it; a sanitizer's report makes the exit status 66."""
    options = {f"{tool}_OPTIONS": "exitcode=66:halt_on_error=1" for tool in ("TSAN", "ASAN", "UBSAN")}
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=options, check=False)


@pytest.fixture(scope="module")
def tsan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program under ThreadSanitizer, or skip where its runtime is missing or cannot start."""
    folder = tmp_path_factory.mktemp("tsan")
    (folder / "hello.cpp").write_text(HELLO)
    command = ["g++", "-fsanitize=thread", "-pthread", "hello.cpp", "-o", "hello"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"g++ cannot link ThreadSanitizer: {built.stderr.strip()[-200:]}")
    ran = start(folder / "hello")
    if ran.returncode != 0:  # usually address space randomisation that it does not support; setarch -R helps
        pytest.skip(f"ThreadSanitizer does not start here: {ran.stderr.strip()[-200:]}")
    return build(folder, "program", PROGRAM, "-fsanitize=thread")


@pytest.mark.parametrize("kernel", ["none", "fence", "warp"])
def test_thread_sanitizer_accepts_correct_kernels(tsan: Path, kernel: str) -> None:
    done = start(tsan, kernel)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        *(("no_release", "get_pack"), ("no_barrier", "pass<"), ("no_warp", "pass<")),
        *(("early_fence", "get_pack"), ("old_fence", "get_pack")),
    ],
)
def test_thread_sanitizer_finds_planted_bugs(tsan: Path, kernel: str, function: str) -> None:
    done = start(tsan, kernel)
    assert done.returncode == 66
    assert "data race" in done.stderr
    assert function in done.stderr


@pytest.mark.parametrize("flags", ["-fsanitize=address,undefined", "-DPYNCCLX_UCONTEXT"])
def test_other_builds_run(tmp_path: Path, flags: str) -> None:
    program = build(tmp_path, "program", PROGRAM, flags)
    for arguments in (["none"], ["warp", "hostile"]):
        done = start(program, *arguments)
        assert done.returncode == 0, done.stderr
