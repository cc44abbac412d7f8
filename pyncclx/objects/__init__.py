"""Python objects that hold device arrays, as mpi4py's lower-case methods take them: data by kernels, the rest by MPI.

The way of ``comm.send({"w": array}, dest)``:

1. `communicator/objects.py`: `send` lets `contents.py` look for device arrays. Without any, the call is mpi4py's.
2. `contents.py` takes the object apart: a pickle of all but the data of its arrays, and the arrays.
3. If the arrays are short, `short.py` puts a copy of their data beside the pickle. Else `messages.py` offers a copy as
   `Isend` does: `cargo.py` puts it into one block of device memory, and an envelope locates that. mpi4py sends the
   pickle, the arrays' forms and the envelope as one object. The library keeps the copy until it has been read.
4. When mpi4py unpickles it, `messages.py` makes new arrays (`libraries.py`), a kernel brings the data, and
   `contents.py` puts the object together. So every way to receive an object receives arrays too.

`gather`, `scatter` and `alltoall` do the same for each pair of ranks; a rank that receives several objects opens them
when it has all (`opening.py`). `bcast` and `allgather` (`spread.py`) move the
data by `Bcast` and `Allgatherv` once MPI has the rest; `allreduce` and `reduce` are in `operands.py`.
"""
