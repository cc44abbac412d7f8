"""A rank of a long-lived job, which job.py starts.

    mpiexec -n 2 python tests/programs/worker.py WAY SOCKET

A program is performed on communicators that live as long as the job, so it must leave nothing behind; a program that
raises or hangs ends the job.
"""

import sys
from pathlib import Path

import mpi4py

mpi4py.rc.finalize = False  # so that children of forks may end in any way
sys.path[0] = str(Path(__file__).resolve().parents[1])

from programs.rank import main  # noqa: E402  its package is beside launch.py

if __name__ == "__main__":
    main()
