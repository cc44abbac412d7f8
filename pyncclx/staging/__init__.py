"""Operations that have no kernel: MPI does them, on copies of the device arrays in pinned host memory."""
