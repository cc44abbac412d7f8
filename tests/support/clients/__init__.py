"""Programs that `tests/clients.py` runs: what clients of mpi4py do, in few lines, and what records their results."""
