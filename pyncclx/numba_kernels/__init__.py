"""Collectives written in Python with Numba, on the device API: what ``algorithm="numba"`` runs, on GPUs only.

Each kernel is the readable twin of one in cuda/collectives/, and the place to begin when an algorithm is to be changed.
They are imported at their first use, for they need Numba.

Read the room in this order: `workspace` (the memory that kernels exchange data through), `exchange` (how they do),
`barrier`, `blocks` (Allgather and Alltoall), `allreduce`, `rows` and `alltoallv` (the kernels), `compiled` (from a
Python function to a kernel that is launched), `choices` (which kernel, how many blocks), `calls` (what
`pyncclx.collectives` calls).
"""
