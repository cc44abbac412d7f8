"""Run a program as if it said ``from pyncclx import MPI`` where it says ``from mpi4py import MPI``.

python tests/support/clients/swapped.py PROGRAM [arguments]
python tests/support/clients/swapped.py -m MODULE [arguments]
"""

import runpy
import sys

import mpi4py

from pyncclx import MPI

mpi4py.MPI = sys.modules["mpi4py.MPI"] = MPI
_, first, *rest = sys.argv
if first == "-m":
    sys.argv = rest
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
else:
    sys.argv = [first, *rest]
    runpy.run_path(first, run_name="__main__")
