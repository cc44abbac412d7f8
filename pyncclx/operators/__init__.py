"""What kernels compute: MPI's operators, a program's own, and transforms of what is sent."""
