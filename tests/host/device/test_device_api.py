"""The device API compiles: C++ and Python declare the same functions, and their instructions are the right ones."""

import importlib.util
import itertools
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import pyncclx
from pyncclx.device import functions
from pyncclx.device import team as device_team
from pyncclx.failures import kernel_errors
from pyncclx.memory import layout
from pyncclx.memory.parameters import NO_CALL, TeamStruct
from pyncclx.system.paths import CUDA_DIR

_path = Path(__file__).resolve().parents[3] / "examples" / "kernels" / "ping_pong.py"
_spec = importlib.util.spec_from_file_location("ping_pong", _path)
ping_pong = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ping_pong)

HEADERS = ("pyncclx.cuh", "device/pyncclx_moves.cuh", "device/pyncclx_blocks.cuh", "device/pyncclx_partitions.cuh")
HEADER = "".join((CUDA_DIR / name).read_text() for name in HEADERS)
NUMBA_TYPES = {"pyncclx_team": "uint64", "pyncclx_address": "uint64", "u64": "uint64", "u32": "uint32", "int": "int32"}
NUMBA_TYPES |= {"void": "void", "pyncclx_partitions": "uint64"}
FUNCTION = re.compile(r"^PYNCCLX_API (\w+) pyncclx_(\w+)\(\s*([^)]*)\)", re.MULTILINE)


def test_python_declares_what_the_header_has() -> None:
    declared = {}
    for returned, name, parameters in FUNCTION.findall(HEADER):
        types = [NUMBA_TYPES[parameter.split()[0]] for parameter in parameters.split(",") if parameter]
        declared[name] = f"{NUMBA_TYPES[returned]}({', '.join(types)})"
    assert declared == functions.SIGNATURES


def test_every_function_says_what_it_orders() -> None:
    """In the comment before it, or at the beginning of its section."""
    ordered = "rders? nothing|eleases|cquires|Orders what|[Ll]ike pyncclx_"
    for section in re.split(r"^// ---- ", HEADER, flags=re.MULTILINE)[1:]:
        comments = section.split("PYNCCLX_API")
        for before, function in itertools.pairwise(comments):
            assert re.search(ordered, comments[0] + before), function.splitlines()[0]


def test_older_compilers_take_the_header() -> None:
    """NVRTC 13.0 takes a generic lambda for a function of the host, without an option that programs need not give."""
    files, seen = ["pyncclx.cuh"], set[str]()
    while files:
        name = files.pop()
        text = (CUDA_DIR / name).read_text()
        assert not re.search(r"\]\s*\([^)]*\bauto\b", text), name
        seen.add(name)
        files += {*re.findall(r'^#include "([\w./]+)"', text, re.MULTILINE)} - seen
    assert {"device/moves.cuh", "protocol/vector.cuh", "protocol/signal.cuh"} <= seen


PROGRAM = r"""
#include "pyncclx.cuh"
using namespace pyncclx;
int main() {
    printf("%zu %zu %zu %zu %zu %zu\n", sizeof(DeviceTeam), offsetof(DeviceTeam, windows), sizeof(SignalWord),
           sizeof(BarrierWords), sizeof(CounterWords), sizeof(DeviceWindow) + offsetof(DeviceWindows, window));
    printf("%d %d %d %d\n", kPeerPointer, kWaitUntil, kBarrier, kAllreduce);
    printf("%d %d %d\n", int(kNoSuchRank), int(kMisaligned), int(kOtherSize));
    DeviceTeam team;
    if (fread(&team, 1, sizeof team, stdin) != sizeof team) return 1;
    printf("%d %d %llu %llu %llu %llu %llu\n", team.team.rank, team.team.size, team.signals, team.blocks, team.counters,
           u64(team.state[0]), u64(team.state[kMaxRanks - 1]));
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_kernels_read_what_python_packs(tmp_path) -> None:
    source, program = tmp_path / "device_team.cpp", tmp_path / "device_team"
    source.write_text(PROGRAM)
    flags = ["-std=c++17", "-Wno-unknown-pragmas", "-Wall", "-Werror", "-DPYNCCLX_HOST", "-pthread"]
    include = f"-I{pyncclx.include_path()}"
    subprocess.run(["g++", *flags, include, str(source), "-o", str(program)], check=True, timeout=100)
    chosen = layout.plan(1 << 20, 7, 4)
    team = TeamStruct.of(chosen, rank=3, operation=5, timeout_ns=1, watch=2, windows=3, base=[9] * 7)
    state = range(100, 100 + layout.MAX_RANKS)
    parts = device_team.DeviceTeamStruct(signals=11, blocks=12, counters=13, windows=14, state=state)
    packed = team.pack() + NO_CALL + parts.pack()
    packed = packed.ljust(device_team.NBYTES, bytes(1))
    output = subprocess.run([str(program)], input=packed, capture_output=True, check=True, timeout=100).stdout.decode()
    numbers = [list(map(int, line.split())) for line in output.splitlines()]
    line, functions = device_team.LINE, kernel_errors.FUNCTIONS
    table = struct.calcsize(f"=Q{2 * layout.MAX_RANKS}Q")
    assert numbers[0] == [device_team.NBYTES, device_team.WINDOWS_OFFSET, line, line, line, table]
    assert [functions[number] for number in numbers[1]] == ["peer_pointer", "wait_until", "barrier", functions[-1]]
    assert numbers[2] == [min(kernel_errors.MISUSES), max(kernel_errors.MISUSES) - 1, max(kernel_errors.MISUSES)]
    assert numbers[3] == [3, 7, 11, 12, 13, 100, 100 + layout.MAX_RANKS - 1]


# ---- machine code --------------------------------------------------------------------------------------

BARRIER = "BAR.SYNC.DEFER_BLOCKING"

# A kernel per call; what its machine code must have, in this order.
CALLS = {
    "pyncclx_signal_set(t, 1, 0, 5)": "MEMBAR.ALL.SYS STG.E.64.STRONG.SYS",
    "pyncclx_signal_add(t, 1, 0, 5)": "MEMBAR.ALL.SYS RED.E.ADD.64.STRONG.SYS",
    "pyncclx_signal_read(t, 0)": "LDG.E.64.STRONG.SYS CCTL.IVALL",
    "pyncclx_wait_until(t, 0, 5)": "LDG.E.64.STRONG.SYS CCTL.IVALL",
    "pyncclx_wait_until_block(t, 0, 5)": "LDG.E.64.STRONG.SYS CCTL.IVALL BAR.RED.OR.DEFER_BLOCKING",
    "pyncclx_put_signal_thread(t, x, x, 64, 1, 0, 5)": "STG.E.128 MEMBAR.ALL.SYS STG.E.64.STRONG.SYS",
    "pyncclx_put_signal_warp(t, x, x, n, 1, 0, 5)": "STG.E.128 MEMBAR.ALL.SYS STG.E.64.STRONG.SYS",
    "pyncclx_put_signal_block(t, x, x, n, 1, 0, 5)": f"STG.E.128 {BARRIER} MEMBAR.ALL.SYS STG.E.64.STRONG.SYS",
    "pyncclx_barrier(t)": f"{BARRIER} MEMBAR.ALL.SYS STG.E.STRONG.SYS LDG.E.STRONG.SYS CCTL.IVALL",
    "pyncclx_allgather_block(t, x, x, n)": f"MEMBAR.ALL.SYS CCTL.IVALL STG.E.128 {BARRIER} MEMBAR.ALL.SYS",
    "pyncclx_allreduce_block_f32(t, x, n)": "CCTL.IVALL LDG.E.128 FADD.FTZ",
    "pyncclx_last_block(t, 0)": f"{BARRIER} MEMBAR.ALL.SYS ATOMG.E.ADD.64.STRONG.SYS CCTL.IVALL",
    "pyncclx_pready_thread(t, 1)": "LDG.E.STRONG.SYS CCTL.IVALL MEMBAR.ALL.SYS ATOMG.E.ADD.64.STRONG.SYS CCTL.IVALL",
    "pyncclx_pready_block(t, 1)": "BAR.RED.OR.DEFER_BLOCKING STG.E.128 BAR.RED.OR.DEFER_BLOCKING MEMBAR.ALL.SYS "
    "ATOMG.E.ADD.64.STRONG.SYS CCTL.IVALL MEMBAR.ALL.SYS STG.E.STRONG.SYS",
    "pyncclx_parrived(t, 1)": "LDG.E.STRONG.SYS CCTL.IVALL",
    "(pyncclx_fence(), 0)": "MEMBAR.SC.SYS",
    "(pyncclx_quiet(), 0)": "MEMBAR.SC.SYS",
    "pyncclx_atomic_add_u32(t, x, 1, 1)": "MEMBAR.ALL.SYS ATOMG.E.ADD.STRONG.SYS CCTL.IVALL",
    "pyncclx_atomic_cas_u64(t, x, 1, 2, 1)": "MEMBAR.ALL.SYS ATOMG.E.CAS.64.STRONG.SYS CCTL.IVALL",
    "pyncclx_get_block(t, x, x, n, 1)": "LDG.E.128",
    "pyncclx_put_packets_warp(t, x, x, n, 1, 7)": "STG.E.128.STRONG.SYS STG.E.128.STRONG.SYS",
    "pyncclx_receive_packets_block(t, x, x, n, 7)": "LDG.E.128.STRONG.SYS BAR.RED.OR.DEFER_BLOCKING",
    "(pyncclx_copy_block(x, x + 64, n), 0)": "LDG.E.128 STG.E.128",
}
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The machine code of each call. Compiled as CuPy does, without this library's options."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")
    wheels = Path(nvrtc.__file__).parents[2] / "nvidia"
    tool = shutil.which("nvdisasm") or next((str(path) for path in wheels.glob("*/bin/nvdisasm")), None)
    if tool is None:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    parameters = "pyncclx_team t, char* x, u64 n, u64* out"
    calls = (f'extern "C" __global__ void f{i}({parameters}) {{ *out = {call}; }}' for i, call in enumerate(CALLS))
    program = "\n".join(['#include "pyncclx.cuh"', *calls]).encode()
    options = [f"-arch={request.param}", "-std=c++17", "-ftz=true", f"-I{pyncclx.include_path()}"]
    _, handle = nvrtc.nvrtcCreateProgram(program, b"calls.cu", 0, [], [])
    status = nvrtc.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])[0]
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(handle)[1])
    nvrtc.nvrtcGetProgramLog(handle, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    cubin = bytearray(nvrtc.nvrtcGetCUBINSize(handle)[1])
    nvrtc.nvrtcGetCUBIN(handle, cubin)
    file = tmp_path_factory.mktemp("code") / "calls.cubin"
    file.write_bytes(cubin)
    text = subprocess.run([tool, "-c", str(file)], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^//-+ \.text\.(\w+) +-+$", text.replace("REDG.", "RED."), flags=re.MULTILINE)
    bodies = dict(zip(sections[1::2], sections[2::2], strict=True))
    return {call: bodies[f"f{i}"] for i, call in enumerate(CALLS)}


@pytest.mark.parametrize("call", CALLS)
def test_instructions(code: dict[str, str], call: str) -> None:
    pattern = ".*".join(rf"\s{re.escape(each)}\s" for each in CALLS[call].split())
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([^\s;]+)[^;]*;", code[call])
    assert re.search(pattern, " " + "  ".join(found) + " "), found


def test_signals_have_system_scope(code: dict[str, str]) -> None:
    """The one word of narrower scope claims a record of failures among the blocks of this GPU."""
    for call, text in code.items():
        strong = re.findall(r"\S+\.STRONG\.\S+", text)
        assert {word for word in strong if not word.endswith(".STRONG.SYS")} <= {"ATOMG.E.CAS.STRONG.GPU"}, call


def test_numba_links_with_every_function() -> None:
    """Kernels in Python that use all of them become machine code, without a GPU; nothing is missing."""
    cuda = pytest.importorskip("numba.cuda", reason="kernels written in Python need Numba")
    pytest.importorskip("cuda.bindings.nvjitlink", reason="needs nvidia-nvjitlink")
    from pyncclx.backends.compilers import nvrtc  # noqa: PLC0415
    from support import device_kernels  # noqa: PLC0415

    assert {*functions.SIGNATURES, "address", "pointer"} - {"size"} <= set(device_kernels.everything.__code__.co_names)
    u64, u8, i4, i8 = "uint64", "uint8", "int32", "int64"
    signatures = {
        device_kernels.ring: f"void({i8}, {u8}[::1], {u8}[:, ::1], {u8}[:, ::1], {i4}[::1], {i8}, {i8})",
        device_kernels.pass_partitions: f"void({i8}, {i8}, {', '.join([f'{i8}[:, ::1]'] * 3)}, {i8}, {i4}[::1])",
        device_kernels.everything: f"void({i8}, {u64}[::1], {u64}[::1], {i8}[::1])",
        **dict.fromkeys(ping_pong.python_functions(), f"void({', '.join([i8] * 7)})"),
    }
    for function, signature in signatures.items():
        (kernel, library), _ = cuda.compile_all(
            function, signature, device=False, abi="numba", cc=(9, 0), output="ltoir"
        )
        binary = nvrtc.link(nvrtc.Binary(kernel, {function.__name__: ""}), library.data, "sm_90")
        assert function.__name__.encode() in binary.cubin
