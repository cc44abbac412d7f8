"""Compilers of kernels: NVRTC for GPUs, g++ for the emulator, Numba for functions written in Python."""
