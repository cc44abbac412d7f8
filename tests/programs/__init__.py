"""Random legal programs, run on mpi4py and on pyncclx, whose results must be equal. `run.py` is the command."""
