"""Buffer arguments: address, count and datatype of an array or mpi4py buffer spec.

The entry points are `buffers.resolve`, `vectors` and `places.where`.
"""
