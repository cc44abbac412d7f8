"""Every kernel compiles for real GPUs, without one; registers, spills and memory orders of the result are checked.

In the sample that `make test` runs: every kernel on sm_90, with some template arguments if it has any. With
PYNCCLX_TEST_ALL=1: every kernel with all of them on each architecture, but each (type, operator) in one kernel of
the reductions. The last test compiles one pair in all of these. A report is kept in the cache until a source or the
compiler changes.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

import pytest

from pyncclx.launch.sources import FILES, instantiation
from pyncclx.memory import layout
from pyncclx.system import paths
from pyncclx.system.cache_folders import cache_directory
from support import sample
from support.lease import LANES
from support.reduction_pairs import REDUCTIONS

nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")

pytestmark = pytest.mark.timeout(1500)  # the first on an architecture waits for the compiler, on two cores
ARCHITECTURES = ("sm_80", "sm_90", "sm_100") if sample.ALL else ("sm_90",)
FEW = 1  # template arguments of a kernel that moves bytes or changes words, in the sample
SHIFTS = {"sm_80": 0, "sm_90": 1, "sm_100": 3}  # of the reduction kernel that a pair meets: one-shot and two-shot
REGISTERS = 65536  # of a multiprocessor
SPILL_NBYTES = 16  # stored and loaded: one register, put aside outside the loops, is no loss
SPILLS = {  # more than that, where it was measured to be no loss
    # a tile of two ranks, four packs at once: of 128 MB of bfloat16 on 2 H100 Allreduce takes 421 µs, with two and
    # less spilled 440, Reduce 391 and 396, Reduce_scatter_block 234 and 256; and around the call that folds tiles of
    # more ranks, not in its loops: 128 MB of float32 take 649 µs on 4 H200, before 681
    "allreduce_two_shot": 448,
    "reduce_two_shot": 384,
    "reduce_two_shot_to_root": 768,
    "reduce_scatter_two_shot": 448,
    "reduce_scatter_block_two_shot": 448,
    # two blocks of 512 threads a multiprocessor, to be launched early: 512 KB of float32 take 5.3 µs on 2 H200, before
    # 5.7, Reduce 4.3, before 4.8, and Reduce_scatter_block 3.4, before 4.2. Bytes spill most (there 208 and 104, of
    # float32 76 and none), and lose by it: MAX of 2 MB to one rank takes 12.6, before 11.6. Not measured: Bcast's, of 3
    # or more ranks, and sm_100, where most is spilled
    "allreduce_two_shot_lines": 336,
    "reduce_two_shot_lines": 320,
    "reduce_scatter_block_one_shot_lines": 544,
    "bcast_two_shot_lines": 128,
    "dispatch": 80,  # to 8-bit floats, where as many loads are on their way as registers allow
}
AT_ONCE = 12  # kernels in one program: reading the headers costs little beside them


@dataclass(frozen=True)
class Report:
    """What the assembler reports of one kernel, and its instructions that order memory, or depend on it."""

    registers: int
    spill_nbytes: int
    code: list[str]


@dataclass(frozen=True)
class Batch:
    """What is compiled together."""

    architecture: str
    file: str
    names: tuple[str, ...]


# ---- compile -------------------------------------------------------------------------------------------


def instantiations(architecture: str) -> Iterator[tuple[str, str]]:
    """Pairs of a file and the C++ name of one of its kernels."""
    for file, (names, all_templates) in FILES.items():
        if file not in REDUCTIONS:
            for template in sample.some(all_templates(), FEW):
                yield from ((file, instantiation(name, *template)) for name in names)
    if not sample.ALL:
        yield from one_each()
        return
    shift = SHIFTS[architecture]
    for i, template in enumerate(FILES[REDUCTIONS[0]].templates()):
        files = [file for file in REDUCTIONS if template in FILES[file].templates()]
        folds = [(file, name) for file in files for name in FILES[file].kernels]
        file, name = folds[(i + i // len(folds) + shift) % len(folds)]
        yield file, instantiation(name, *template)


def one_each() -> Iterator[tuple[str, str]]:
    """Each kernel of a reduction with another (type, operator)."""
    folds = [(file, name) for file in REDUCTIONS for name in FILES[file].kernels]
    for i, (file, name) in enumerate(folds):
        templates = FILES[file].templates()
        yield file, instantiation(name, *templates[i * len(templates) // len(folds)])


def batches(architecture: str) -> Iterator[Batch]:
    wanted = list(instantiations(architecture))
    for file in FILES:
        names = [name for its_file, name in wanted if its_file == file]
        for begin in range(0, len(names), AT_ONCE):
            yield Batch(architecture, file, tuple(names[begin : begin + AT_ONCE]))


def compiled(batch: Batch) -> dict[str, Report]:
    """Compile; or take the report from the cache."""
    sources, version = paths.sources_digest(batch.file), nvrtc.nvrtc.nvrtcVersion()
    key = repr((sources, Path(__file__).read_bytes(), nvrtc.FLAGS, version, batch))
    path = cache_directory() / f"report-{sha256(key.encode()).hexdigest()[:24]}"
    if path.exists():
        return {name: Report(*values) for name, values in json.loads(path.read_text()).items()}
    binary = nvrtc.compile_kernels(batch.file, list(batch.names), batch.architecture, "--ptxas-options=-v")
    symbols = {symbol: name for name, symbol in binary.lowered_names.items()}
    reports = report(binary.log, disassembled(binary.cubin), symbols)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({name: astuple(found) for name, found in reports.items()}, file)
    os.replace(file.name, path)
    return reports


GLOBAL = r"\b(?:LDG?|STG?|ATOM\w*|RED)\.E"  # accesses to memory that others may write


def report(log: str, code: dict[str, list[str]], symbols: dict[str, str]) -> dict[str, Report]:
    """From the log of `ptxas -v`: an entry's resources, and the properties of every function in it."""
    reports, spills = {}, 0
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            symbol, spills = entry[1], 0
        elif spilled := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills += int(spilled[1]) + int(spilled[2])
        elif (used := re.search(r"Used (\d+) registers", line)) and symbol in symbols:
            reports[symbols[symbol]] = Report(int(used[1]), spills, code.get(symbol, []))
    return reports


def disassembled(cubin: bytes) -> dict[str, list[str]]:
    """The instructions of each kernel and of what it calls, see `Report`; empty without nvdisasm."""
    tool = disassembler()
    if tool is None:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # -ndf: without the analysis that names the targets of branches, which nothing here reads
        text = subprocess.run([tool, "-c", "-ndf", file.name], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^//-+ \.text\.(\w+) +-+$", text, flags=re.MULTILINE)
    return {name: instructions(code) for name, code in zip(sections[1::2], sections[2::2], strict=True)}


def instructions(code: str) -> list[str]:
    """As ``STG.E.64.STRONG.SYS [R2], R4``."""
    lines = (re.sub(r"\s+", " ", match[1]) for match in re.finditer(r"/\*[0-9a-f]{4,}\*/\s+([^;]+?)\s*;", code))
    kept = rf"{GLOBAL}|STRONG|MEMBAR|BAR\.|CONSTANT|\.NC\b|\bTEX|\bTLD|ACQBULK"
    return [line for line in lines if re.search(kept, line)]


def disassembler() -> str | None:
    wheel = Path(nvrtc.nvrtc.__file__).parents[2] / "nvidia"
    found = [str(path) for path in sorted(wheel.glob("*/bin/nvdisasm"))]
    return found[0] if found else shutil.which("nvdisasm")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def reports(request: pytest.FixtureRequest) -> dict[str, Report]:
    """Of all kernels on one architecture. NVRTC compiles several programs at a time."""
    wanted = list(batches(request.param))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done: dict[str, Report] = {}
        for batch, found in zip(wanted, pool.map(compiled, wanted), strict=True):
            assert set(found) == set(batch.names)
            done.update(found)
    return done


# ---- look ----------------------------------------------------------------------------------------------


def complaints(reports: dict[str, Report], complain: Callable[[Report], Iterable[str]]) -> str:
    return "\n".join(f"{name}: {text}" for name, report in reports.items() for text in complain(report))


def test_registers_are_enough(reports):
    """Next to nothing is spilled, and a block of the largest size fits."""
    sources = "\n".join(path.read_text() for path in sorted(paths.CUDA_DIR.rglob("*.cu*")))
    constants = {name: int(value) for name, value in re.findall(r"constexpr int (k\w+) = (\d+);", sources)}
    bounds = re.findall(r"__launch_bounds__\((k\w+)(?:, (\d+))?\)\s+(\w+)\(", sources)
    threads = {kernel: constants[bound] * int(blocks or 1) for bound, blocks, kernel in bounds}
    for name, found in reports.items():
        kernel = name.split("<")[0]
        assert found.spill_nbytes <= SPILLS.get(kernel, SPILL_NBYTES), f"{name}: {found.spill_nbytes} bytes"
        assert -(-found.registers // 8) * 8 * threads[kernel] <= REGISTERS, name


def of_narrow_scope(report: Report) -> Iterator[str]:
    strong = [line for line in report.code if ".STRONG." in line]  # atomics are among the blocks of this GPU
    yield from (line for line in strong if ".STRONG.SYS" not in line and not re.search("ATOMG.*STRONG.GPU", line))


def without_signals(report: Report) -> Iterator[str]:
    for kind in (r"\bLDG?\.E", r"\bSTG?\.E"):
        if not any(re.search(kind, line) and ".STRONG." in line for line in report.code):
            yield f"no strong access {kind}"


# ChannelControl::entered in a lease, ::tail, ring by ring, and ::taken, lane by lane. They say what has been read:
# nothing was stored that they could overtake.
ENTERED = layout.HEADER_NBYTES + layout.CALLS_NBYTES + 16
TAIL = ENTERED + 8 * (1 + layout.RINGS) * layout.MAX_RANKS
TAKEN = TAIL + 8 * (layout.MAX_RANKS * layout.RINGS + LANES)
AFTER_LOADS = (
    f"+{ENTERED:#x}]",
    *(f"+{TAIL + 8 * layout.MAX_RANKS * ring:#x}]" for ring in range(layout.RINGS)),
    *(f"+{TAKEN + 8 * lane:#x}]" for lane in range(LANES)),
)


def unfenced(report: Report) -> Iterator[str]:
    fenced = False
    for line in report.code:
        if "BAR" in line:
            fenced = re.search(r"MEMBAR\.\w+\.SYS", line) is not None
        flag = re.search(r"\bST\w*\.\S*STRONG", line) and ".128." not in line and not line.endswith("RZ")
        if flag and not fenced and not any(word in line for word in AFTER_LOADS):
            yield line


def read_only(report: Report) -> list[str]:
    return [line for line in report.code if re.search(r"CONSTANT|\.NC\b|\bTEX|\bTLD", line)]


def too_early(report: Report) -> Iterator[str]:
    if any("ACQBULK" in line for line in report.code):
        before = takewhile(lambda line: "ACQBULK" not in line, report.code)
        yield from (line for line in before if re.search(GLOBAL, line))


needs_code = pytest.mark.skipif(disassembler() is None, reason="needs nvidia-cuda-nvdisasm")


@needs_code
def test_flags_have_system_scope(reports):
    """A word that another GPU polls must not be kept in this one's cache."""
    assert complaints(reports, of_narrow_scope) == ""
    over_nodes = *FILES["tokens/over_nodes.cu"].kernels, *FILES["tokens/add_nodes.cu"].kernels
    # which poll nothing
    windows = ("accumulate", "accumulate_nests", "put_blocks", "put_signal")
    silent = ("pack", "unpack", "put_eager", "begin_rounds", "fold", *windows, *over_nodes)
    signalling = {name: found for name, found in reports.items() if name.split("<")[0] not in silent}
    assert complaints(signalling, without_signals) == ""


@needs_code
def test_signals_come_after_a_fence(reports):
    """Every flag (4 or 8 bytes; packets have 16) that is stored, but to clear it or to give room back, follows a fence.

    In the text, where the last barrier or fence before it must be a fence; a loop or a branch would not show.
    """
    assert complaints(reports, unfenced) == ""


@needs_code
def test_nothing_is_looked_at_before_the_last_kernel_has_ended(reports):
    """One that is launched early may find out what its arguments say, and no more. In the text, as above.

    But for a wait for a signal: what is behind it comes after the kernel before it, it does not itself (signals.cu).
    And for where a shuffle's experts are, which a dispatch looks at by two instructions, since that never changes.
    """
    dispatches = {name: found for name, found in reports.items() if name.startswith("dispatch<")}
    awaited = {name: found for name, found in reports.items() if name != "wait_signal<>" and name not in dispatches}
    assert complaints(awaited, too_early) == ""
    for name, found in dispatches.items():
        early, waits = list(too_early(found)), any("ACQBULK" in line for line in found.code)
        assert len(early) == (2 if waits else 0), name
        assert all(re.search(r"LDG\.E R", line) for line in early), name


@needs_code
def test_nothing_is_read_through_the_read_only_path(reports):
    """It need not notice what a peer writes."""
    assert complaints(reports, read_only) == ""


@pytest.mark.parametrize(
    ("look", "code"),
    [
        (of_narrow_scope, "LDG.E.STRONG.GPU R2, [R4.64]"),
        (without_signals, "ST.E.STRONG.SYS [R4.64], R2"),  # and nothing is polled
        (unfenced, "@!P0 STG.E.64.STRONG.SYS desc[UR4][R6.64+0x8], R4"),
        (unfenced, "MEMBAR.ALL.GPU ;\n /*0010*/ STG.E.STRONG.SYS [R6.64], R4"),
        (unfenced, "MEMBAR.SC.SYS ;\n /*0010*/ BAR.SYNC 0x0 ;\n /*0020*/ STG.E.STRONG.SYS [R6.64], R4"),
        (read_only, "LDG.E.128.CONSTANT R4, desc[UR4][R2.64]"),
        (too_early, "LDG.E.64 R16, desc[UR4][R130.64+0x80] ;\n /*0010*/ ACQBULK"),
    ],
)
def test_errors_would_be_found(look, code):
    assert list(look(Report(32, 0, instructions(f"        /*0000*/                   {code} ;"))))


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_pair_compiles_in_every_kernel(architecture):
    template = FILES["collectives/reduce.cu"].templates()[0]
    for file in REDUCTIONS:
        names = tuple(instantiation(name, *template) for name in FILES[file].kernels)
        for name, found in compiled(Batch(architecture, file, names)).items():
            limit = SPILLS.get(name.split("<")[0], SPILL_NBYTES)
            assert found.spill_nbytes <= limit, f"{name}: {found.spill_nbytes} bytes"


def test_compiling_leaves_the_interpreter_alone(tmp_path):
    """An empty log is one byte; Python has one object for each such string, into which nothing may be written."""
    file = tmp_path / "one.cu"
    file.write_text('extern "C" __global__ void one(int* x) { *x = 1; }\n')
    assert not nvrtc.compile_kernels(str(file), ["one"], ARCHITECTURES[0]).log
    assert bytes([32]) == b"\x20"
    assert bytes([32])[0] == 32
