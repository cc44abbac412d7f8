"""Python objects with device arrays, as mpi4py's lower-case methods take them.

Kernels move the data of the arrays, and MPI moves the rest. The steps of ``comm.send({"w": array}, dest)``:

1. `communicator/objects.py`: `send` calls `pickled.py` to find device arrays. Without any, the call is mpi4py's.
2. `pickled.py` splits the object into its arrays and a pickle of all but their data.
3. If the arrays are short, `Short` adds a copy of their data to the pickle. Otherwise `messages.py` offers a copy
   like `Isend`: `packed_arrays.py` packs it into one block of device memory, and an envelope locates the block. mpi4py
   sends the pickle, the arrays' forms and the envelope as one object. The library keeps the copy until it has been
   read.
4. When mpi4py unpickles the object, `messages.py` makes new arrays (`libraries.py`), a kernel moves the data, and
   `pickled.py` restores the object. So every way to receive an object receives arrays too.

`gather`, `scatter` and `alltoall` do the same for each pair of ranks; a rank that receives several objects opens them
once it has all (`opening.py`). `bcast` and `allgather` (`broadcast.py`) move the data by `Bcast` and `Allgatherv` after
MPI has moved the rest; `allreduce` and `reduce` are in `operands.py`.
"""
