"""What a rank of a fault test runs: an operation again and again, until it raises; then the way on.

    program.py OPERATION CALLS     with PYNCCLX_FAULT in the environment, and PYNCCLX_TEST_FOLDER for the outcomes

The outcome of a rank is a line of JSON in a file: what was raised, what it names, how long the call took. Another file
is there when Python has called all functions of `atexit`; MPI_Finalize comes then.
"""

import atexit
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["PYNCCLX_TEST_FOLDER"])
STACKS = open(FOLDER / f"stacks{os.getpid()}", "w")  # noqa: SIM115  # until the process ends
faulthandler.dump_traceback_later(float(os.environ["PYNCCLX_TEST_SECONDS"]), file=STACKS, exit=True)

from mpi4py import MPI  # noqa: E402

atexit.register((FOLDER / f"ended{MPI.COMM_WORLD.rank}").touch)  # called last: the first function of all

OVER_NODES = "PYNCCLX_TEST_NODES" in os.environ
if OVER_NODES:  # as in conftest.py: the pretend nodes of the ranks
    os.environ["PYNCCLX_NODE"] = os.environ["PYNCCLX_TEST_NODES"].split(",")[MPI.COMM_WORLD.rank]

from operations import OPERATIONS, Work  # noqa: E402

import pyncclx  # noqa: E402


def describe(error):
    """What an exception is and names."""
    names = ("ranks", "world_ranks", "operation", "epoch", "host", "peer", "rank", "reason", "missing")
    fields = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {"type": type(error).__name__, "text": str(error), **fields}


def attempt(work, call):
    """Make a call; return what it raised, and how long it took."""
    began = time.monotonic()
    try:
        call(work)
        work.comm.synchronize()
        return None
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("PYNCCLX_TEST_ESCAPE") == "1" and type(error).__name__ == "InjectedFault":
            raise
        return {**describe(error), "seconds": time.monotonic() - began}


def go_on(work, call):
    """Shrink, and do the same there, at once."""
    team = work.comm.state.team  # `comm.team` would raise
    whole = team.lease.nbytes if team is not None else None
    work.comm.Revoke()  # a rank may wait for one that lives, and has left
    comm = work.comm.Shrink()
    work.free()
    comm.Barrier(device=True)  # it takes its memory before communicators that the call makes
    again = Work(comm)
    for _ in range(3):
        call(again)
    comm.synchronize()
    team = comm.spanning.team if OVER_NODES and comm.spanning is not None else comm.team
    work.comm.Free()
    failed = len([uid for uid in team.heap.peers if uid not in team.heap.members])
    return {"size": comm.size, "whole": whole, "leased": team.lease.nbytes, "failed": failed}


def die_at_exit():
    """While the others are in MPI_Finalize."""
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    name, calls = sys.argv[1], int(sys.argv[2])
    call, outcome = OPERATIONS[name], {}
    (FOLDER / f"pid{MPI.COMM_WORLD.rank}").write_text(str(os.getpid()))
    if "PYNCCLX_TEST_TIMEOUT" in os.environ:  # short: once all have started, and have their kernels
        call(Work(pyncclx.Communicator(MPI.COMM_WORLD).Dup()))
        os.environ["PYNCCLX_TIMEOUT"] = os.environ["PYNCCLX_TEST_TIMEOUT"]
    work = Work(pyncclx.Communicator(MPI.COMM_WORLD).Dup())
    work.comm.Barrier(device=True)
    for number in range(1, calls + 1):
        outcome = attempt(work, call)
        if outcome is not None:
            outcome |= {"call": number, "again": attempt(work, call)}
            break
    outcome = outcome or {"type": None}
    outcome["world_rank"] = MPI.COMM_WORLD.rank
    file = FOLDER / f"rank{MPI.COMM_WORLD.rank}"
    file.write_text(json.dumps(outcome))
    if os.environ.get("PYNCCLX_TEST_KILLED_AT_EXIT") == str(MPI.COMM_WORLD.rank):
        atexit.register(die_at_exit)
    if os.environ.get("PYNCCLX_TEST_SHRINK") == "1" and outcome["type"] is not None:
        outcome["after"] = go_on(work, call)
        file.write_text(json.dumps(outcome))


main()
