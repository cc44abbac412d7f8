"""Python objects with device arrays, for mpi4py's lower-case methods.

Kernels move the data of the arrays, and MPI moves the rest. The steps of ``comm.send({"w": array}, dest)``:

1. `communicator/objects.py`: `send` calls `pickled.py` to find device arrays. Without any, the call is mpi4py's.
2. `pickled.py` splits the object into its arrays and a pickle of all but their data.
3. If the arrays are short, `Short` adds a copy of their data to the pickle. Otherwise `messages.py` offers a copy to
   the receiver, as `Isend` does: `packed_arrays.py` packs the data into one block of device memory, and an envelope
   locates the block. mpi4py sends the pickle, the arrays' forms and the envelope as one object. The library keeps the
   copy until the receiver has read it.
4. When mpi4py unpickles the object, `messages.py` makes new arrays (`libraries.py`), a kernel moves the data, and
   `pickled.py` restores the object. So every method that receives objects also receives arrays.

`gather`, `scatter` and `alltoall` do the same for each pair of ranks; a rank that receives several objects opens them
after all have arrived (`opening.py`). `bcast` and `allgather` (`broadcast.py`) move the data by `Bcast` and
`Allgatherv` after MPI has moved the rest; `allreduce` and `reduce` are in `operands.py`.
"""
