"""Write clients.md: programs that people have for mpi4py on pyncclx, from the results of tests/clients.py.

python docs/clients.py            write it again
python docs/clients.py --check    exit with 1 if it is not what the results give
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_suffix(".md")
RESULTS = PAGE.parent.parent / "examples" / "benchmarks" / "results"
PLACES = {"none": "CPU, NumPy's arrays through mpi4py", "host": "host device (emulated)", "gpu": "GPU"}
INTRODUCTION = """# Programs that exist

Programs for mpi4py, run as they are: with mpi4py alone, under `python -m pyncclx run` (*runner*), and with
`pyncclx.MPI` instead of `mpi4py.MPI` (*import*). The results, the tests that pass, and how the program ends are
compared. `python tests/clients.py` repeats this for all programs, or for those that you name; this page is made from
its results.
"""
HEAT = """
heat and pylops-mpi copy arrays on GPUs to host memory themselves, unless they find MPI to be GPU-aware.
`python -m pyncclx run --gpu-aware` lets them give MPI device arrays: it sets heat's `GPU_AWARE_MPI`, which heat leaves
off with Open MPI, and `PYLOPS_MPI_CUDA_AWARE=1`.

The runner gives each rank a GPU of its own. With the import the GPU of a program's first device array is the rank's.
heat and PyFR choose one for each rank. pylops-mpi does not, so both ranks are on GPU 0. There, without MPS, processes
take turns, and [collectives go through host memory](howto/mps.md). `comm.select_device()` before the first array gives
each rank its own GPU.

Slower than mpi4py are heat's `SVD` and PyFR with 4 ranks on one GPU. `SVD` splits communicators in each call, whose
ranks meet to take over the memory of those before: with 4 ranks on an H200 communication took 4.3 of 6.8 ms, and 0.9 of
3.1 with mpi4py. PyFR has 8 exchanges a step, in each of which Python begins and ends three messages of a rank: its
pace counts. In one run a start took 50 µs of it and a step 4.0 ms, in another on such a machine 95, as all of Python
took twice as long, and 5.0. Steps took 3.7 to 5.1 ms in other runs, where mpi4py's, which copies in CUDA graphs, took
3.5 to 3.9. With two GPUs, and with 2 ranks on one, steps take less than mpi4py's.
The most that `matmul` can gain is heat's own part: 2.1 ms with 2 ranks on an H200 and 3.6 with 4, of 12.0 and 16.3 with
mpi4py; it took 2.7 and 5.3. The times of `sort` and k-means differed by up to two thirds between runs, also with mpi4py
alone.

FBPIC advances a periodic plasma wave on 1024 x 128 cells with 4.2 million macroparticles. It stages what it sends
through the host, unless `FBPIC_ENABLE_GPUDIRECT=1` lets it give MPI device arrays. A step took 22.1 ms with its own
staging and 18.0 ms with device arrays under the runner: the medians of 7 times 40 steps, in one run each, on 2 H200.
On 4 H200 a rank has less to compute, and its many short exchanges wait for Python: three runs of each, in turns, took
10.4, 8.4 and 7.8 ms with its own staging, 12.9, 8.7 and 9.5 with device arrays.

PyFR runs a Taylor-Green vortex in 24^3 hexahedra of order 3, in slabs. `mpi-type = cuda-aware` in `[backend-cuda]`
lets it give MPI device memory; without it PyFR copies what it sends through the host. It does not run on CPUs
here: its OpenMP backend calls `libxsmm_fsspmdm_create`, which libxsmm 1.17, the release that Linux distributions
package, does not have. With NumPy's arrays on the host device, which is for tests, that backend would wait for ever:
it starts persistent requests by MPI's function in C, which finds nothing to start.
"""

Row = dict[str, Any]


def page() -> str:
    """All of it."""
    parts = [INTRODUCTION]
    for path in sorted(RESULTS.glob("clients-*.json")):
        results = json.loads(path.read_text())
        parts.append(section(path.stem, results["environment"], results["rows"]))
    return "\n".join([*parts, HEAT.lstrip()])


def section(name: str, about: dict[str, Any], rows: list[Row]) -> str:
    """The table of one file."""
    gpus = f", {', '.join(about['gpus'])}" if about["gpus"] else ", no GPU"
    gpus += ", which ranks share under MPS" if about.get("mps") else ""
    head = f"## {about['date']}: Python {about['python']}, {about['cpus']} CPUs{gpus}\n\n"
    head += f"From `examples/benchmarks/results/{name}.json`.\n\n"
    body = "| Program | Ranks | Where | runner | import |\n|---|---|---|---|---|\n"
    keys = list(dict.fromkeys((row["client"], row.get("ranks"), row.get("device")) for row in rows))
    for client, ranks, device in keys:
        ways = {
            row.get("way"): row
            for row in rows
            if (row["client"], row.get("ranks"), row.get("device")) == (client, ranks, device)
        }
        if None in ways:
            body += f"| {client} | | | {ways[None]['verdict']} | |\n"
            continue
        cells = " | ".join(cell(ways[way], device) if way in ways else "" for way in ("runner", "import"))
        body += f"| {client} | {ranks} | {PLACES[device]} | {cells} |\n"
    return head + body


def cell(row: Row, device: str) -> str:
    """What is said of one way; on GPUs with the time of each part, and mpi4py's."""
    words = f"**{row['verdict']}**" if row["verdict"] == "different" else str(row["verdict"])
    if row.get("tests"):
        words += f", {row['tests']} tests"
    if device == "gpu":
        pairs = [f"{part} {theirs * 1e3:.3g} → {ours * 1e3:.3g} ms" for part, (ours, theirs) in row["times"].items()]
        words += "; " + ", ".join(pairs) if pairs else ""
    return words


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        differs = not PAGE.exists() or PAGE.read_text() != text
        if differs:
            print(f"{PAGE.name} is not what the results give: run python docs/clients.py", file=sys.stderr)
        return int(differs)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
