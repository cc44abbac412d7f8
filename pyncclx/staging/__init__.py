"""Operations without a kernel, which MPI does on copies in pinned host memory."""
