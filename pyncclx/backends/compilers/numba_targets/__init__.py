"""Functions and kernels written in Python, compiled by Numba's CUDA targets."""
