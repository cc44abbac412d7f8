"""The collectives written in Python: they become machine code without a GPU, with the instructions that order data."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("numba.cuda", reason="kernels written in Python need Numba")
nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink", reason="needs nvidia-nvjitlink")

from pyncclx.backends.compilers import nvrtc  # noqa: E402
from pyncclx.memory.cstruct import offsets_of  # noqa: E402
from pyncclx.memory.layout import Layout  # noqa: E402
from pyncclx.memory.parameters import AlltoallvArgs  # noqa: E402
from pyncclx.numba_kernels import alltoallv, calls, compiled, workspace  # noqa: E402
from support.sample import some  # noqa: E402

PACKET, SIGNAL = "STG.E.128.STRONG.SYS", "MEMBAR.ALL.SYS STG.E.64.STRONG.SYS LDG.E.64.STRONG.SYS CCTL.IVALL"
GPU_SCOPE = {"ATOMG.E.CAS.STRONG.GPU"}  # claims a record of failures among the blocks of this GPU
KERNELS = {  # what is in the machine code of each, in this order
    ("numba_barrier",): "MEMBAR.ALL.SYS STG.E.STRONG.SYS LDG.E.STRONG.SYS CCTL.IVALL",
    ("numba_allgather",): f"{PACKET} {SIGNAL}",
    ("numba_alltoall",): f"{PACKET} {SIGNAL}",
    ("numba_alltoallv",): f"{PACKET} {SIGNAL}",
    ("numba_allreduce_one_shot", "float32", "SUM"): f"{PACKET} FADD",
    ("numba_allreduce_two_shot_packets", "float32", "SUM"): f"{PACKET} FADD",
    ("numba_allreduce_two_shot", "int64", "MIN"): f"{SIGNAL} {SIGNAL}",
}
CHOSEN = some(KERNELS, 4)


# What is called: waits that have lasted, errors, addresses that are no multiple of 16, divisions of 64 bits.
RARE = r"Patience|record_failure|record_overflow|misused|load_bytes|store_bytes|__cuda_sm20_div_s64"


def machine_code(kernel: tuple[str, ...]) -> bytes:
    """A kernel, as four ranks would run it."""
    code = compiled.code_of(kernel[0], kernel[1:], 4, "sm_90")
    around = nvrtc.compile_cached(compiled.FILE, [compiled.KERNEL], "sm_90", "-dlto")
    return nvrtc.link(around, code, "sm_90").cubin


@pytest.fixture(scope="module")
def cubins() -> dict[tuple[str, ...], bytes]:
    """All of them, compiled on all processors: each takes seconds."""
    nvrtc.compile_cached(compiled.FILE, [compiled.KERNEL], "sm_90", "-dlto")
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        return dict(zip(CHOSEN, processes.map(machine_code, CHOSEN), strict=True))


@pytest.mark.parametrize("kernel", CHOSEN, ids=lambda kernel: kernel[0])
def test_machine_code(cubins: dict[tuple[str, ...], bytes], kernel: tuple[str, ...], tmp_path: Path) -> None:
    """Nothing is missing, nothing contracted, no call of a function left, and no float64 has crept in."""
    wheels = Path(nvjitlink.__file__).parents[2] / "nvidia"
    tool = shutil.which("nvdisasm") or next((str(path) for path in wheels.glob("*/bin/nvdisasm")), None)
    if tool is None:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    file = tmp_path / "kernel.cubin"
    file.write_bytes(cubins[kernel])
    text = subprocess.run([tool, "-c", str(file)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([^\s;]+)[^;]*;", text)
    pattern = ".*".join(rf"\s{re.escape(each)}\s" for each in KERNELS[kernel].split())
    assert re.search(pattern, " " + "  ".join(found) + " ")
    assert {word for word in found if ".STRONG." in word and not word.endswith(".STRONG.SYS")} <= GPU_SCOPE
    assert not [line for line in re.findall(r"CALL\S+ [^;]+", text) if not re.search(RARE, line)]
    assert not {word for word in found if word.startswith(("FFMA", "DFMA", "DADD", "DMUL"))}


@pytest.mark.parametrize("sharing", [1, 2, 4, 8, 16])
def test_blocks_of_ranks_that_share_a_gpu(sharing: int) -> None:
    """All of them together are no more than one rank's alone, and packets go only where they fit the slots of these."""
    layout = Layout(1 << 20, 16, 4, 64, 1024, sharing=sharing)
    assert calls.choose_alltoallv(layout, "numba").grid == workspace.BLOCKS // sharing
    for nbytes in (1, 1 << 10, 1 << 15, 1 << 17, 1 << 18, 1 << 30):
        chosen = calls.choose_move(layout, "allgather", nbytes), calls.choose_allreduce(layout, nbytes)
        assert all(1 <= choice.grid <= workspace.BLOCKS // sharing for choice in chosen)
        for choice in chosen:
            if "two_shot" not in choice.kernel and choice.why.endswith("packets"):
                assert nbytes <= choice.grid * workspace.packet_nbytes(16)


@pytest.mark.parametrize("size", range(1, 17))
def test_slots(size: int) -> None:
    """Slots of all sources lie side by side, aligned, in the room that a block has for a parity."""
    packets, chunk = workspace.packet_nbytes(size), workspace.chunk_nbytes(size)
    assert packets % 16 == chunk % 16 == 0
    assert 1024 <= 2 * size * packets <= workspace.PACKETS_NBYTES
    assert 4096 <= size * chunk <= workspace.CHUNKS_NBYTES
    assert workspace.PACKETS_BEGIN >= 8 * workspace.BLOCKS
    assert workspace.PACKETS_BEGIN % 128 == workspace.CHUNKS_BEGIN % 128 == 0


def test_arguments_of_alltoallv() -> None:
    """The kernel in Python finds each where AlltoallvArgs has it."""
    fields = [name.upper() for name in offsets_of(AlltoallvArgs) if not name.startswith("fixed_")]
    assert [getattr(alltoallv, field) for field in fields] == list(range(len(fields)))
