"""Run operations that have no kernel through MPI, on copies in pinned host memory."""
