"""Repeat the measurements of this folder on the GPUs of this machine.

    python examples/benchmarks/measure.py -n 4 [step ...] [--folder results] [--seconds 600]

Every step is a command, which is printed and can also be started by itself. It writes DEVICE-xRANKS-STEP.json into the
folder, and pictures. The most important steps come first. A step for which the time is too short is ended; its results
so far are kept. On a machine without GPUs the steps run on the host device, to show that they work.

As in the results here, NCCL runs without NVLink multicast, unless you set NCCL_NVLS_ENABLE=1.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pyncclx.system import driver, mpi_library

HERE = Path(__file__).parent
OPERATIONS = "allreduce allgather alltoall reduce_scatter_block bcast reduce gather scatter alltoallv"
# The command of each step, run on every rank. {json} and {plot}: options with its files; {most}: the largest size.
STEPS = {
    "tune": "-m pyncclx tune -e {most}",
    "windows": f"-m pyncclx bench {OPERATIONS} --windows -e {{most}} {{against_all}} {{json}} {{plot}}",
    "ordinary": f"-m pyncclx bench {OPERATIONS} -e {{most}} {{against}} {{json}}",
    "token-shuffle": "-m pyncclx bench-shuffle --experts 256 {tokens} {hidden} {against} {json} {plot}",
    "windows-bfloat16": f"-m pyncclx bench {OPERATIONS} --windows -d bfloat16 -e {{most}} {{against_all}} {{json}}",
    "allreduce-int32": "-m pyncclx bench allreduce --windows -d int32 -e {most} {against_all} {json}",
    "allreduce-float64": "-m pyncclx bench allreduce --windows -d float64 -e {most} {against_all} {json}",
    "put-signal": "-m pyncclx bench put_signal --windows -e {most} {against} {json}",
    "host-time": "-m pyncclx bench allreduce bcast allgather alltoallv sendrecv send isend --host-time {torch} {json}",
    "objects": "-m mpi4py {here}/objects.py {json}",
    "links": "-m mpi4py {here}/links.py {bytes} {json}",
    "shuffle-floor": "-m mpi4py {here}/shuffle_floor.py {hidden} {json}",
}
ON_GPUS = {
    "most": "128M",
    "against": "--graph --against nccl",
    "against_all": "--graph --against nccl,nccl-symmetric",
    "torch": "--against torch",
    "tokens": "--tokens 1 4 16 64 128 256 512 1024 2048 4096",
    "hidden": "--hidden 7168",
    "bytes": "",
}
# Without CUDA graphs and other libraries, and with small sizes, because the host device is slow.
ON_HOST = dict.fromkeys(ON_GPUS, "") | {"most": "4K", "tokens": "--tokens 1 8", "hidden": "--hidden 64"}
ON_HOST["bytes"] = "--bytes 4096"
GPUS = 0 if os.environ.get("PYNCCLX_DEVICE") == "host" else driver.count()
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0"} if GPUS else {"PYNCCLX_DEVICE": "host"}
CLEANUP = 20.0  # seconds that mpiexec has to end its ranks


def device() -> str:
    """Return a short name of this machine's GPUs, for file names: h200."""
    return driver.name(0).split()[1].lower() if GPUS else "host"


def command(step: str, ranks: int, values: Mapping[str, str], name: Path) -> list[str]:
    """Return the command of a step, whose files begin with `name`."""
    files = {"json": f"--json {shlex.quote(f'{name}.json')}", "plot": f"--plot {shlex.quote(f'{name}.png')}"}
    program = shlex.split(STEPS[step].format_map({**values, **files}))
    return [mpi_library.mpiexec() or "mpiexec", "-n", str(ranks), sys.executable, *program]


def run(arguments: list[str], seconds: float) -> str:
    """Run a command for at most `seconds`; return its outcome."""
    began = time.monotonic()
    with subprocess.Popen(arguments, env={**ENVIRONMENT, **os.environ}) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            return f"ended after {seconds:.0f} s"
    return f"{time.monotonic() - began:.0f} s" + (f", failed with code {code}" if code else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=list(STEPS), metavar="step", help=", ".join(STEPS))
    parser.add_argument("-n", "--ranks", type=int, default=GPUS or 2, help="default: as many as GPUs")
    parser.add_argument("--folder", type=Path, default=Path("results"), help="for the files (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of it (default %(default)s)")
    parser.add_argument("--most", metavar="SIZE", help="the largest (default 128M; on the host device 4K)")
    options = parser.parse_args()
    if unknown := [step for step in options.steps if step not in STEPS]:
        parser.error(f"there is no {unknown[0]!r}; steps are {', '.join(STEPS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    values = (ON_GPUS if GPUS else ON_HOST) | {"here": shlex.quote(str(HERE))}
    values |= {"most": options.most} if options.most else {}
    end = time.monotonic() + options.seconds
    outcomes = {}
    for step in options.steps:
        arguments = command(step, options.ranks, values, options.folder / f"{device()}-x{options.ranks}-{step}")
        settings = " ".join(f"{name}={os.environ.get(name, value)}" for name, value in ENVIRONMENT.items())
        print(f"\n==== {step}: {settings} {shlex.join(arguments)}", flush=True)
        left = end - time.monotonic() - CLEANUP
        outcomes[step] = run(arguments, left) if left > 0 else "no time left"
    print("\n" + "\n".join(f"{step:20}{outcome}" for step, outcome in outcomes.items()), flush=True)
    return int(any("failed" in outcome for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
