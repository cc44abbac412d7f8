"""The compiled form of cuda/protocol/signal.cuh has the scopes and orders that the emulator cannot check."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from pyncclx.system.paths import CUDA_DIR

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")

# A kernel per function; what its PTX must have; what the machine code must have, in this order.
FUNCTIONS = [
    ("ld_relaxed_sys(a.word)", "ld.relaxed.sys.global.u32", "LDG.E.STRONG.SYS"),
    ("ld_relaxed_sys(a.wide)", "ld.relaxed.sys.global.u64", "LDG.E.64.STRONG.SYS"),
    ("ld_acquire_sys(a.word)", "ld.acquire.sys.global.u32", "LDG.E.STRONG.SYS CCTL.IVALL"),
    ("ld_acquire_sys(a.wide)", "ld.acquire.sys.global.u64", "LDG.E.64.STRONG.SYS CCTL.IVALL"),
    ("ld_here(a.word)", "ld.global.u32", "LDG.E"),
    ("ld_here(a.wide)", "ld.global.u64", "LDG.E.64"),
    ("sum(ld_packet_sys(a.pack))", "ld.relaxed.sys.global.v2.u64", "LDG.E.128.STRONG.SYS"),
    ("sum(get_pack(a.pack))", "ld.global.v2.u64", "LDG.E.128"),
    ("(st_relaxed_sys(a.word, 1), 0)", "st.relaxed.sys.global.u32", "STG.E.STRONG.SYS"),
    ("(st_relaxed_sys(a.wide, 1), 0)", "st.relaxed.sys.global.u64", "STG.E.64.STRONG.SYS"),
    ("(st_release_sys(a.word, 1), 0)", "st.release.sys.global.u32", "MEMBAR.ALL.SYS STG.E.STRONG.SYS"),
    ("(st_release_sys(a.wide, 1), 0)", "st.release.sys.global.u64", "MEMBAR.ALL.SYS STG.E.64.STRONG.SYS"),
    ("(st_packet_sys(a.pack, Pack{1, 2}), 0)", "st.relaxed.sys.global.v2.u64", "STG.E.128.STRONG.SYS"),
    ("(st_line_sys(a.pack, Pack{1, 2}), 0)", "activemask.b32", "STG.E.128.STRONG.SYS"),
    ("(st_line_sys(a.pack, Pack{1, 2}), 1)", "st.release.sys.global.u64", "MEMBAR.ALL.SYS STG.E.64.STRONG.SYS"),
    ("sum(ld_line_sys(a.pack))", "activemask.b32", "LDG.E.128.STRONG.SYS"),
    ("sum(ld_line_sys(a.pack)) + 1", "ld.acquire.sys.global.u64", "LDG.E.64.STRONG.SYS CCTL.IVALL"),
    ("(put_pack(a.pack, Pack{1, 2}), 0)", "st.global.v2.u64", "STG.E.128"),
    ("(fence_sys(), 0)", "fence.acq_rel.sys", "MEMBAR.ALL.SYS"),
    ("atomic_cas_gpu(a.word, 1, 2)", "atom.relaxed.gpu.global.cas.b32", "ATOMG.E.CAS.STRONG.GPU"),
    ("(add_release_sys(a.wide, 1), 0)", "red.release.sys.global.add.u64", "MEMBAR.ALL.SYS RED.E.ADD.64.STRONG.SYS"),
    ("atomic_add_sys(a.word, 1)", "atom.acq_rel.sys.global.add.u32", "MEMBAR.ALL.SYS ATOMG.E.ADD.STRONG.SYS"),
    ("atomic_add_sys(a.wide, 1)", "atom.acq_rel.sys.global.add.u64", "MEMBAR.ALL.SYS ATOMG.E.ADD.64.STRONG.SYS"),
    ("atomic_cas_sys(a.word, 1, 2)", "atom.acq_rel.sys.global.cas.b32", "MEMBAR.ALL.SYS ATOMG.E.CAS.STRONG.SYS"),
    ("atomic_cas_sys(a.wide, 1, 2)", "atom.acq_rel.sys.global.cas.b64", "MEMBAR.ALL.SYS ATOMG.E.CAS.64.STRONG.SYS"),
    ("clock_ns()", "%globaltimer", "SR_GLOBALTIMERLO"),
]

HEAD = """
#include "protocol/signal.cuh"
struct Args { u64* out; u32* word; u64* wide; Pack* pack; };
__device__ u64 sum(Pack pack) { return pack.x + pack.y; }
"""
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def checked(result: tuple[object, ...]) -> object:
    """Return what an NVRTC call gave."""
    assert result[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, result
    return result[1] if len(result) > 1 else None


def compile_functions(architecture: str) -> tuple[str, bytes]:
    """Compile a kernel around each function; returns PTX and machine code."""
    kernels = (
        f'extern "C" __global__ void f{i}(const __grid_constant__ Args a) {{ *a.out = {expression}; }}'
        for i, (expression, _, _) in enumerate(FUNCTIONS)
    )
    program = checked(nvrtc.nvrtcCreateProgram("\n".join([HEAD, *kernels]).encode(), b"signal.cu", 0, [], []))
    options = [f"-arch={architecture}".encode(), b"-std=c++17", f"-I{CUDA_DIR}".encode()]
    checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    outputs = []
    for measure, fetch in [
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
    ]:
        outputs.append(bytearray(checked(measure(program))))  # type: ignore[call-overload]
        checked(fetch(program, outputs[-1]))
    return outputs[0].decode(), bytes(outputs[1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ptx(architecture: str) -> None:
    ptx, _ = compile_functions(architecture)
    for i, (expression, instruction, _) in enumerate(FUNCTIONS):
        body = re.search(rf"\.entry f{i}\(.*?\n\}}", ptx, re.DOTALL)
        assert body, expression
        assert instruction in body[0], (expression, body[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code(architecture: str, tmp_path: Path) -> None:
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    tool = shutil.which("nvdisasm") or next((str(path) for path in packages.glob("*/bin/nvdisasm")), None)
    if tool is None:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    cubin = tmp_path / "signal.cubin"
    cubin.write_bytes(compile_functions(architecture)[1])
    text = subprocess.run([tool, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    text = text.replace("REDG.", "RED.")  # its name differs between architectures
    for i, (expression, _, wanted) in enumerate(FUNCTIONS):
        body = re.search(rf"\n\.text\.f{i}:(.*?)(\n\.text\.|\Z)", text, re.DOTALL)
        assert body, expression
        pattern = ".*".join(rf"\s{re.escape(each)}\s" for each in wanted.split())
        assert re.search(pattern, body[1], re.DOTALL), (expression, body[1])
