"""Decode many sequences with a mixture of experts that are spread over all ranks.

    mpiexec -n 4 python examples/decoding/decoding.py [--preset scout] [--batch 1 16 64 128 256]

Every rank has its own sequences, and some of the experts of each layer. A step makes the next token of each sequence.
In a layer each row first attends to its sequence's earlier tokens, whose keys and values are on its rank. Then it goes
to its k best experts, on any ranks, and their results come back. When a sequence ends, another one takes its place. On
GPUs a step is one CUDA graph, which is captured once; each replay has another routing.

Four exchanges move the rows to the experts: pyncclx's token shuffle; NCCL's all-gather and reduce-scatter; NCCL's sends
and receives of equal blocks; mpi4py through host memory. Each must give the same tokens and last rows as one rank that
has all experts. Sums are exact, so the comparison is bit by bit.

With PYNCCLX_DEVICE=host it runs without a GPU, on NumPy arrays; mpi4py's collectives then take the place of NCCL's.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder with common/
import pyncclx
from common.overlap_report import add_outputs, warn_if_emulated, write_json
from common.program import array_module, read_options, stop
from decoding_comparison import Comparison
from decoding_model import EXACT, PRESETS, Preset
from decoding_report import draw, print_table

# The weights of all experts, which rank 0 has, take at most this share of the free memory.
SHARE = 0.4


def main() -> int:
    """Decode with each exchange and batch, and report; return 1 if a result is wrong."""
    options = read_options(MPI.COMM_WORLD, parse)
    assign_node(options.nodes, MPI.COMM_WORLD)
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    xp = array_module(comm, "float32")
    comparison = Comparison(comm, xp, sizes_of(comm, xp, options), options)
    if comm.rank == 0:
        print(comparison.title)
    tables, wrong = [], 0
    for batch in options.batch:
        points, right = comparison.run(batch)
        wrong += not right
        tables.append(points)
        if comm.rank == 0:
            print_table(points)
    if comm.rank == 0:
        draw(options.output, comm, comparison.title, tables)
    write_json(options.json, comm, [point.row(points[0]) for points in tables for point in points])
    warn_if_emulated(comm)
    wrong += not comparison.is_exact()
    if comm.rank == 0:
        print(f"largest sum {comparison.largest:g}; {comparison.dtype} is exact up to {EXACT[comparison.dtype]}")
        print(f"check: {'FAILED' if wrong else 'PASSED'}")
    comparison.free()
    return int(wrong > 0)


def assign_node(nodes: str | None, world: MPI.Intracomm) -> None:
    """Put this rank on the pretend node that ``--nodes`` names."""
    if nodes:
        each = nodes.split(",")
        if len(each) != world.size:
            stop(world, f"--nodes {nodes} names {len(each)} nodes for {world.size} ranks")
        os.environ["PYNCCLX_NODE"] = each[world.rank]
        os.environ.setdefault("NCCL_HOSTID", f"{os.uname().nodename} {each[world.rank]}")


def sizes_of(comm: Any, xp: Any, options: argparse.Namespace) -> Preset:
    """Return the preset's sizes, with at most as many layers as memory has room for."""
    sizes = PRESETS[options.preset]
    itemsize, free = (4, host_memory()) if comm.device == "host" else (2, xp.cuda.Device().mem_info[0])
    most = int(SHARE * min(MPI.COMM_WORLD.allgather(free)) // sizes.layer_nbytes(itemsize))
    if sizes.experts % comm.size:
        stop(comm, f"{sizes.experts} experts of --preset {options.preset} are no multiple of {comm.size} ranks")
    if most < 1:
        stop(comm, f"a layer of --preset {options.preset} needs more than {SHARE:.0%} of the free memory")
    return sizes._replace(layers=min(most, options.layers or sizes.layers))


def host_memory() -> int:
    """Return this rank's share of the free memory, in bytes."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MPI.COMM_WORLD.size


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    batches = [1, 16] if on_host else [1, 16, 64, 128, 256]
    preset, steps, repeat = ("tiny", 12, 3) if on_host else ("scout", 32, 20)
    parser.add_argument("--preset", choices=[*PRESETS], default=preset, help="sizes of the model")
    parser.add_argument("--batch", type=int, nargs="+", default=batches, metavar="N", help="sequences of each rank")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer or more than the preset has")
    parser.add_argument("--steps", type=int, default=steps, metavar="N", help="tokens of each sequence to compare")
    parser.add_argument("--repeat", type=int, default=repeat, metavar="N", help="runs that are timed")
    parser.add_argument("--room", type=float, default=1, metavar="X", help="rows of an expert, by what it should need")
    parser.add_argument("--nodes", metavar="A,A,B,B", help="pretend nodes of the ranks")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and requests")
    add_outputs(parser, "decoding.png")
    options = parser.parse_args()
    for name, least in (("batch", min(options.batch)), ("steps", options.steps), ("repeat", options.repeat)):
        if least < 1:
            parser.error(f"--{name} is {least}; it must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
