"""Collectives written in Python with Numba, for ``algorithm="numba"`` on GPUs.

Each kernel is a readable twin of one in cuda/collectives/. Start here to try out a change to an algorithm. The modules
are imported at their first use, because they need Numba.

Read the package in this order: `workspace` (the memory through which kernels exchange data), `exchange` (the exchange
itself), `blocks` (Barrier, Allgather and Alltoall), `allreduce` and `alltoallv` (the kernels), `compiled` (compiles a
Python function to a kernel), `calls` (chooses kernel and blocks, for `pyncclx.collectives`).
"""
