"""Random legal programs: drawn, performed by mpi4py and in several ways by pyncclx, and compared.

    python tests/programs/run.py --programs 2000 [--seed N] [--ranks 2 3] [--ways communicator runner]
    python tests/programs/run.py --seed 12              # the batch of one seed again
    python tests/programs/run.py --replay FILE          # the program of a listing

A program that differs is shrunk, printed, and written to the folder of --findings. The exit code is 1 if any does.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from programs.command import main  # noqa: E402  its package is beside launch.py

if __name__ == "__main__":
    sys.exit(main(__doc__))
