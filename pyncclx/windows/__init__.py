"""MPI's one-sided operations on windows of device memory."""
