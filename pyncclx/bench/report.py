"""What the benchmark prints and writes down."""

from __future__ import annotations

import argparse
import datetime
import platform
import re
from importlib import metadata
from typing import Any

COLUMNS = f"#{'size':>11} {'count':>12} {'type':>10} {'redop':>6} {'time':>9} {'algbw':>8} {'busbw':>8} {'#wrong':>7}"
UNITS = f"#{'(B)':>11} {'(elements)':>12} {'':>10} {'':>6} {'(us)':>9} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}"


def parse_size(text: str) -> int:
    """Bytes from "8", "64K", "256M" or "1G"."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if not match:
        raise SystemExit(f"{text!r} is no size; give bytes, or a number with K, M or G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def environment(comm: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Where and when the figures were taken."""
    packages = ("pyncclx", "mpi4py", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "nvidia-nccl-cu13")
    return {
        "ranks": comm.size,
        "device": comm.team.device.identity.rsplit(" ", 1)[0],
        "mode": "graph" if arguments.graph else "eager",
        "heap": comm.memory_report()["heap"],
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version for name in packages if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def print_header(operation: str, comm: Any, arguments: argparse.Namespace, on_host: bool) -> None:
    """Say what is timed, then the column titles."""
    mode = "in a replayed CUDA graph" if arguments.graph else "eager"
    print(f"\n# {operation}, {comm.size} ranks, {mode}; time of the slowest rank")
    if on_host:
        print("# on the host device, which runs GPU kernels on CPU threads: its times mean nothing")
    against = bool(arguments.against)
    print(COLUMNS + (f" {'nccl':>9} {'busbw':>8} {'ratio':>6}" if against else ""))
    print(UNITS + (f" {'(us)':>9} {'(GB/s)':>8} {'':>6}" if against else ""), flush=True)


def print_row(row: dict[str, Any]) -> None:
    """Print one size; the ratio is NCCL's time over ours."""
    bandwidth = row["nbytes"] / row["time_us"] / 1e3
    wrong = "N/A" if row["wrong"] is None else row["wrong"]
    text = (
        f"{row['nbytes']:>12} {row['count']:>12} {row['datatype']:>10} {row['redop']:>6} {row['time_us']:>9.2f} "
        f"{bandwidth:>8.2f} {bandwidth * row['bus_factor']:>8.2f} {wrong:>7}"
    )
    if "nccl_us" in row:
        peer = row["nbytes"] / row["nccl_us"] / 1e3 * row["bus_factor"]
        text += f" {row['nccl_us']:>9.2f} {peer:>8.2f} {row['nccl_us'] / row['time_us']:>6.2f}"
    print(text, flush=True)
