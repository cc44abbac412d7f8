"""Collectives written in Python with Numba, for ``algorithm="numba"`` on GPUs.

Each kernel is the readable twin of one in cuda/collectives/, and the place to begin when you change an algorithm. They
are imported at their first use, because they need Numba.

Read the package in this order: `workspace` (the memory that kernels exchange data through), `exchange` (how they do),
`barrier`, `blocks` (Allgather and Alltoall), `allreduce`, `rows` and `alltoallv` (the kernels), `compiled` (from a
Python function to a kernel to launch), `choices` (which kernel, how many blocks), `calls` (what `pyncclx.collectives`
calls).
"""
