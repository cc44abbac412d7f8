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

Existing programs for mpi4py run unchanged in three ways: with mpi4py alone, under `python -m pyncclx run` (*runner*),
and with `pyncclx.MPI` instead of `mpi4py.MPI` (*import*). The tables compare their results, the tests that pass, and
how the programs end. `python tests/clients.py` repeats this for all programs, or for those that you name. This page is
made from its results.
"""
HEAT = """
## Device arrays in heat and pylops-mpi

These libraries copy arrays on GPUs to host memory themselves, unless they find that MPI is GPU-aware.
`python -m pyncclx run --gpu-aware` makes them pass device arrays to MPI. It sets `PYLOPS_MPI_CUDA_AWARE=1` and heat's
`GPU_AWARE_MPI`, which heat leaves off with Open MPI.

The runner gives each rank its own GPU. With the import a rank uses the GPU of the program's first device array. heat
and PyFR choose a GPU for each rank. pylops-mpi does not, so both ranks use GPU 0. There, without MPS, processes take
turns, and [collectives go through host memory](howto/mps.md). Call `comm.select_device()` before the first array to
give each rank its own GPU.

## What is slower than with mpi4py

* **heat's `SVD`, 4 ranks on one H200.** It splits communicators in each call, and the ranks meet to reuse the memory
  of earlier ones. Communication takes 4.3 of 6.8 ms; 0.9 of 3.1 ms with mpi4py.
* **heat's sum and sort, FBPIC: 2 ranks that share an H200 under MPS.** They take 1.5 times and 1.1 times as long. Their
  calls are short or wait for each other, so the host's time for each call counts.
* **PyFR, 4 ranks on one H200.** Each step has 8 exchanges, and in each one Python starts and ends three messages of a
  rank. A step takes 3.7 to 5.1 ms; 3.5 to 3.9 ms with mpi4py, which copies in CUDA graphs. With two GPUs, or 2 ranks
  on one GPU, steps take less time than with mpi4py.

Times of `sort` and k-means differ by up to two thirds between runs, also with mpi4py alone.

## FBPIC

FBPIC advances a periodic plasma wave on 1024 x 128 cells with 4.2 million macroparticles. It copies what it sends to
host memory, unless you set `FBPIC_ENABLE_GPUDIRECT=1`. On 2 H200 a step takes 18.0 ms with device arrays under the
runner; 22.1 ms with FBPIC's own copies. On 4 H200 a rank computes less, and its many short exchanges wait for Python.
Three runs of each take 8.7 to 12.9 ms with device arrays; 7.8 to 10.4 ms with FBPIC's own copies.

## PyFR

PyFR runs a Taylor-Green vortex in 24^3 hexahedra of order 3, in slabs. Set `mpi-type = cuda-aware` in
`[backend-cuda]` to pass device memory to MPI; otherwise PyFR copies what it sends to host memory.

It does not run on CPUs here: its OpenMP backend calls `libxsmm_fsspmdm_create`, which libxsmm 1.17 of Linux
distributions does not have. On the host device, which is for tests, that backend would wait for ever: it starts
persistent requests with MPI's C function, which finds nothing to start.
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
