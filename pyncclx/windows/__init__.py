"""One-sided operations on windows of device memory, as MPI has them."""
