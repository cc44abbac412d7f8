"""Any array or mpi4py buffer spec -> address, count, datatype: `buffers.resolve`, `vector_buffers`, `places.where`."""
