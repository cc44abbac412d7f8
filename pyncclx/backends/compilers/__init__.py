"""Compilers: NVRTC for GPUs, g++ for the emulator, Numba for Python functions."""
